"""Traces of a gang's nodes, joined to one."""
