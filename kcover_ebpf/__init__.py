"""eBPF fault sensor for distributed AI training.

Samples the threads and sockets of training ranks in the kernel, detects hangs and faults, names
the rank at fault, and ends or restarts the job as a whole. The layers of this package, lowest
first, are listed in ``pyproject.toml`` under ``tool.importlinter``.
"""

__version__ = "0.1.0"
