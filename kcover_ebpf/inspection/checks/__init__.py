"""One module a subject; each has a function that yields findings, and its entry `CHECK` in the registry."""
