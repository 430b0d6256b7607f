"""The only package that loads, attaches and reads BPF programs."""
