"""Checks whether a node is fit for training. Each check runs in a process that can be abandoned."""
