"""Programs that fail as ranks and drivers do."""
