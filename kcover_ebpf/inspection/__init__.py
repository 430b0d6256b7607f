"""Checks whether a node is fit for training: each check in a process that may be left behind."""
