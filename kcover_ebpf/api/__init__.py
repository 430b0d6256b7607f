"""What Kubernetes objects look like to us: our CRDs, pods, job kinds. Pure: no clock, no file, no network."""
