"""Starts, limits and ends helper processes; the message frames that they use."""
