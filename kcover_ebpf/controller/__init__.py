"""The controller: combines the reports of all nodes, decides, and restarts jobs as a whole."""
