"""What one process does or waits for at a moment, from its calls, its files and the threads around it."""
