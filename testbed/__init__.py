"""What tests and benches share: a Kubernetes on one machine, jobs, faults."""
