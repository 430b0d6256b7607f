"""A tenant's pods that attack the installed chart, and what they cost."""
