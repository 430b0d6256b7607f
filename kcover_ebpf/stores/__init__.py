"""Copies of archives outside the nodes: in an S3-compatible store, or in a mounted folder."""
