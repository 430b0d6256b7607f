"""The meaning of lines in kernel and container logs: rules as data, and the reader that applies them."""
