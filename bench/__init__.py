"""How often the verdict is right, what it costs, and what it survives."""
