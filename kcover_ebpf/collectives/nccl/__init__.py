"""User probes on the NCCL functions that the ranks of a job have mapped (docs/decisions/0012)."""
