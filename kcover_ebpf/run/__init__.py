"""The program `run`: watches one job of this host, ends it or starts it again."""
