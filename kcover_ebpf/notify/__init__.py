"""A word to whoever owns a job: messages about incidents, to targets that the operator named."""
