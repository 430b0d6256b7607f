"""Which devices a node has, what they are called, and which processes hold them."""
