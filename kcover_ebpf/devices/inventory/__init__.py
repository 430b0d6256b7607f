"""The devices of a node, their names, and the processes that use them."""
