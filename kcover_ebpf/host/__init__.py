"""What the host itself shows and lets us do: procfs, cgroupfs, processes. No BPF, no verdicts."""
