"""Classifies what one process does or waits for, from its calls, its files and the threads around it."""
