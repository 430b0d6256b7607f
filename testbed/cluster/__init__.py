"""The test bed: a real Kubernetes with several nodes on one machine (see README.md here)."""
