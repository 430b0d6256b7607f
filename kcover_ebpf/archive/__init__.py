"""The archive of an incident, and the files that it consists of."""
