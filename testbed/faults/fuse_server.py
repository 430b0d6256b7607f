"""A FUSE file system with one file, "data", that answers never, slowly, or when it is closed or synchronised late.

It speaks the kernel's protocol itself (include/uapi/linux/fuse.h), because the point is a server
that misbehaves. Usage: fuse_server.py MOUNTPOINT hung|silent|slow|close|sync SECONDS. It ends
when the file system is unmounted. A hung one answers nothing at all from the first read on, a silent one no read; they
answer each request in a separate thread, as libfuse does by default.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import sys
import threading
import time

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = (
    18,
    20,
    25,
    26,
    27,
    29,
    36,
    42,
)
REQUEST = struct.Struct("<IIQQIIII")
WRITE_IN = struct.Struct("<QQII")
DIRECTORY, DATA = 1, 2
SIZE_BYTES = 1 << 26
DIRECT_IO = 1
SLOW_S = 0.2
LATE = {"close": FLUSH, "sync": FSYNC}


def mount(path: str) -> int:
    """Mount at `path` and return the connection to the kernel; raises OSError."""
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"faultbench", path.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), "mount of a FUSE file system failed")
    return device


def attributes(node: int) -> bytes:
    """Struct fuse_attr of the directory or of the file."""
    mode, size = (0o40755, 4096) if node == DIRECTORY else (0o100666, SIZE_BYTES)
    numbers = (mode, 1, 0, 0, 0, 4096, 0)
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, *numbers)


def answer(
    operation: int, node: int, body: bytes, manner: str, late_s: float
) -> tuple[int, bytes] | None:
    """Error number and data to reply with; None for no reply at all."""
    if operation == LATE.get(manner):
        time.sleep(late_s)
    if operation in (READ, WRITE):
        if manner == "silent":
            return None
        time.sleep(SLOW_S if manner == "slow" else 0)
        size = WRITE_IN.unpack_from(body)[2]
        return 0, struct.pack("<II", size, 0) if operation == WRITE else bytes(min(size, 4096))
    if operation in (FORGET, INTERRUPT, BATCH_FORGET):
        return None
    return control(operation, node)


def control(operation: int, node: int) -> tuple[int, bytes]:
    """Replies to what is neither data nor a notice."""
    replies = {
        INIT: struct.pack("<4I2H2I2HI", 7, 31, 1 << 17, 0, 12, 9, 1 << 20, 1, 256, 0, 0)
        + bytes(28),
        LOOKUP: struct.pack("<4Q2I", DATA, 0, 60, 60, 0, 0) + attributes(DATA),
        GETATTR: struct.pack("<Q2I", 60, 0, 0) + attributes(node),
        SETATTR: struct.pack("<Q2I", 60, 0, 0) + attributes(node),
        OPEN: struct.pack("<Q2I", 1, DIRECT_IO, 0),
        STATFS: struct.pack("<5Q3I", 1 << 20, 1 << 19, 1 << 19, 1 << 16, 1 << 15, 4096, 255, 4096)
        + bytes(28),
        OPENDIR: struct.pack("<Q2I", 1, 0, 0),
        RELEASE: b"",
        FLUSH: b"",
        FSYNC: b"",
        RELEASEDIR: b"",
    }
    return (0, replies[operation]) if operation in replies else (errno.ENOSYS, b"")


def serve(device: int, manner: str, late_s: float) -> None:
    """Answer requests, or not, until the file system is gone."""
    hangs = False
    while True:
        try:
            message = os.read(device, 1 << 21)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            return
        operation = REQUEST.unpack_from(message)[1]
        hangs |= manner == "hung" and operation in (READ, WRITE)
        if not hangs:
            arguments = (device, message, manner, late_s)
            threading.Thread(target=reply_to, args=arguments, daemon=True).start()


def reply_to(device: int, message: bytes, manner: str, late_s: float) -> None:
    """Answer one request."""
    _, operation, unique, node, *_ = REQUEST.unpack_from(message)
    reply = answer(operation, node, message[REQUEST.size :], manner, late_s)
    if reply is not None:
        header = struct.pack("<IiQ", 16 + len(reply[1]), -reply[0], unique)
        # the caller may have given up meanwhile, or the file system be gone
        with contextlib.suppress(OSError):
            os.write(device, header + reply[1])


def main() -> None:
    """Mount, say so, serve."""
    path, manner, late_s = sys.argv[1:]
    device = mount(path)
    print("mounted", flush=True)
    serve(device, manner, float(late_s))


if __name__ == "__main__":
    main()
