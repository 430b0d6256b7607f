"""The documentation: its site, its manual pages, and the check of its links."""
