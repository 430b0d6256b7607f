"""What the host itself tells and lets us do: procfs, cgroupfs, processes. No BPF, no verdicts."""
