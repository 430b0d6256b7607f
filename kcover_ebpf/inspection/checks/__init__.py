"""One module per subject: a function that yields findings, and the entry `CHECK` for the registry."""
