"""The confined processes that read what tenants wrote: the agent's side, and the program."""
