"""Output for people and other programs: text, JSON lines, metrics, bundles."""
