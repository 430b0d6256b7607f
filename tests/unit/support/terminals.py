"""Pseudo-terminals: their size, and what was written to them."""

from __future__ import annotations

import os
import select
import struct
import termios
from fcntl import ioctl


def resize(descriptor: int, lines: int, columns: int) -> None:
    ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def everything(reader: int) -> str:
    """All that arrives until the terminal, which hands on in pieces, is quiet for a moment."""
    text = b""
    while select.select([reader], [], [], 0.2)[0]:
        text += os.read(reader, 65536)
    return text.decode()
