"""What NCCL and PyTorch record about their own collective operations."""
