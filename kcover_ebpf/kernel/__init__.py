"""The only package that touches BPF."""
