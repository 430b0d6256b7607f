"""For users and for releases: set-up, image, documentation, checks of a GPU."""
