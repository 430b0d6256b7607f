"""From the archive of an incident to one page that explains it."""
