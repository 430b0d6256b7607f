"""The demonstrations."""
