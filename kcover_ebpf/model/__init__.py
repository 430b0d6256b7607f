"""The vocabulary of a judgement, for the wire and the judge: verdicts, snapshots of ranks, their states."""
