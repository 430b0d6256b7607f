"""Xids from every source that reports them, each counted once."""
