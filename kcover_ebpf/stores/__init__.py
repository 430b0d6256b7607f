"""Copies of archives outside of the nodes: in an S3-compatible store, or in a mounted folder."""
