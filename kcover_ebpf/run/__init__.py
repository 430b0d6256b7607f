"""The program `run`: watches one job of this host, and ends or restarts it."""
