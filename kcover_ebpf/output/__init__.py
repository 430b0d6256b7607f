"""What people and other programs read: text, JSON lines, metrics, bundles."""
