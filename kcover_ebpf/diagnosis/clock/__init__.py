"""Time and certainty: learned silences, stalls, stragglers, and when a finding is certain enough to act."""
