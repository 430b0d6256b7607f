"""Access to the host itself: procfs, cgroupfs, processes. No BPF, no verdicts."""
