"""Joins the traces of a gang's nodes into one."""
