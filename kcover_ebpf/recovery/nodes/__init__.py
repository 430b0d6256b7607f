"""Which nodes are cordoned, and why."""
