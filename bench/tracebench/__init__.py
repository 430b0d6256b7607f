"""How fast the first screen of `kcover-ebpf trace` is."""
