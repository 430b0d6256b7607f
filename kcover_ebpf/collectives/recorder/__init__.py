"""PyTorch's flight recorder: asks the ranks of a stalled job for what theirs hold."""
