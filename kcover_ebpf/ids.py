"""Numbers of the kernel that must not be mixed up."""

from __future__ import annotations

from typing import NewType

Pid = NewType("Pid", int)
"""A process (the kernel's tgid), in the initial pid namespace."""
Tid = NewType("Tid", int)
"""A thread; that of the first one of a process is the process's own number."""
Inode = NewType("Inode", int)
"""Of a file, pipe or socket; unique within its file system."""
