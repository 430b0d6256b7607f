"""User probes on the functions of NCCL that the ranks of a job have mapped (docs/decisions/0012)."""
