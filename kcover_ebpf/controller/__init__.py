"""The controller: puts the reports of all nodes together, decides, and restarts jobs as a whole."""
