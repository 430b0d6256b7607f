"""Faults in jobs of a real cluster while our own parts, their disks and the API server fail at random moments."""
