"""Sends messages about incidents to the targets in the operator's list, so that a job's owner learns of them."""
