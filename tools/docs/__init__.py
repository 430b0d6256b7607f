"""The documentation: its site, the manual pages, and the check of its links."""
