"""What tests and benches do with a cluster: jobs, agents, nodes, restarts."""
