"""Who belongs to a job: which process is which rank, who started whom, who holds the other end of what."""
