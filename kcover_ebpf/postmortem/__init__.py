"""Makes one page that explains an incident from its archive."""
