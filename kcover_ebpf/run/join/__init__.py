"""One job on several hosts without Kubernetes: the runs of all hosts agree on one verdict, and act together."""
