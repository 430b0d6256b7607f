"""PyTorch's flight recorder: requests the recordings of a stalled job's ranks."""
