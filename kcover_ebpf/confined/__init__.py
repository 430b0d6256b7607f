"""Starts, limits and ends helper processes; the frames that they speak in."""
