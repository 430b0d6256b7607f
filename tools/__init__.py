"""Tools for users and releases: set-up, image, documentation, checks of a GPU."""
