"""A process whose memory lock is really taken: a reader of its command line waits as long as the owner does.

`python -m testbed.faults.memory_lock`, in its own mount namespace, prints a line once its file system is
there, waits for
one (it may be moved into a container meanwhile, whose processes may open no /dev/fuse), prints the pid of the process
whose memory is locked, and waits to be killed.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from testbed.faults import fuse_server as fuse

_KEEP_CACHE = 2  # or an open would wait for the locked page


def _serve(point: str) -> int:
    """A file system that answers no read; the first open of its file reads through the page cache. Its descriptor."""
    opened: list[int] = []
    known = fuse.control

    def control(operation: int, node: int) -> tuple[int, bytes]:
        if operation == fuse.OPEN:
            opened.append(node)
            direct = 0 if len(opened) == 1 else fuse.DIRECT_IO
            return 0, struct.pack("<Q2I", 1, direct | _KEEP_CACHE, 0)
        return known(operation, node)

    fuse.control = control
    device = fuse.mount(point)
    threading.Thread(target=fuse.serve, args=(device, "silent", 0.0), daemon=True).start()
    return device


def started(mounted: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """(pid, descriptor): with the last copy of the descriptor the file system goes, and waiting processes continue.

    `mounted` is called before the process is made.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    point = tempfile.mkdtemp()
    device = _serve(point)
    mounted()
    ready, wake = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(device)
        # one thread reads through the page cache: storage never answers, and the page stays locked. Another maps the
        # file past the cache: the kernel waits for that page, with the memory lock of the process taken.
        cached = os.open(point + "/data", os.O_RDONLY)
        threading.Thread(target=os.read, args=(cached, 4096), daemon=True).start()
        time.sleep(0.3)
        direct = os.open(point + "/data", os.O_RDONLY)
        os.write(wake, b"x")
        libc.mmap(None, ctypes.c_size_t(4096), 1, 2, direct, 0)
        os._exit(0)
    os.read(ready, 1)
    time.sleep(0.5)
    return pid, device


def _wait_to_be_moved() -> None:
    print("mounted", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    print(started(_wait_to_be_moved)[0], flush=True)
    while True:
        time.sleep(1)
