"""What is said of a job, for the wire and the judge alike: verdicts, snapshots of ranks, their states."""
