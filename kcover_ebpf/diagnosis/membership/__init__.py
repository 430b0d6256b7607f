"""Membership in a job: the rank of each process, its parents and children, and the far ends of its files."""
