"""What the GPUs of this host do, every few seconds: by NVML or a running dcgm-exporter, in a program that may hang."""
