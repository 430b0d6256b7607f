"""Recordings of a job's facts, as files that can be judged again elsewhere (docs/tapes.md)."""
