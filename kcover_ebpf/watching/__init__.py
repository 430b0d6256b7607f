"""The loop that samples, decodes and judges, pass by pass."""
