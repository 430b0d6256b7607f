"""What is kept of an incident, and the files that it is kept in."""
