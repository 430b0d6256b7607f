"""What the agent publishes about the gangs of its node, and when."""
