"""The Kubernetes objects that we read and write: our CRDs, pods, job kinds. Pure: no clock, no file, no network."""
