"""What was announced: exits, signals, memory, devices, and ranks that never came. It needs no waiting."""
