"""The vocabulary of observations: what the kernel, devices and /proc said. Pure."""
