"""Facts about a real GPU and its driver that the sensor's assumptions rest on (docs/gpu-check.md)."""
