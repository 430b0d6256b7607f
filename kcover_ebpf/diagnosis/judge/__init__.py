"""From the picture of a moment to one finding. The rules, and no more."""
