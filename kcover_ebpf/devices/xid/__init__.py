"""Xids from every source that reports one, each counted once."""
