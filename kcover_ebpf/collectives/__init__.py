"""What NCCL and PyTorch themselves know of their collective operations."""
