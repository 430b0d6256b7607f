"""What lines of kernel and container logs mean: rules as data, and the reader that applies them."""
