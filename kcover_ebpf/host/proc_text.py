"""Parsers for the files of /proc/PID: stat, status, maps, mountinfo, syscall.

A module by itself, because its users are started often and must import little.

Process names and mapped paths may contain any character that `str.splitlines` splits at. So status is split as
bytes, and callers open maps with newline as the only line end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcover_ebpf.ids import NS, Pid

_ESCAPED = re.compile(r"\\([0-7]{3})")


def split_stat(text: str) -> tuple[str, list[str]]:
    """(name, fields from the state on) of a stat line of /proc; the name may contain anything, also ")"."""
    head, _, rest = text.rpartition(")")
    return head.partition("(")[2], rest.split()


def status_words(status: bytes, field: bytes) -> list[bytes]:
    """The words of one field of a status file (proc_pid_status(5)); empty if the field is missing."""
    for line in status.split(b"\n"):
        if line.startswith(field + b":"):
            return line.split()[1:]
    return []


def status_numbers(status: bytes, field: bytes) -> tuple[int, ...]:
    """The words of one field of a status file as decimal numbers; empty if the field is missing."""
    return tuple(map(int, status_words(status, field)))


_PIDFD = re.compile(r"^Pid:\t(\d{1,10})$", re.MULTILINE)
_TIMER_VALUE = re.compile(r"^it_value: \((\d{1,18}), (\d{1,9})\)$", re.MULTILINE)


def timer_left_ns(fdinfo: str) -> int | None:
    """Nanoseconds until a timer next expires, from its fdinfo (proc_pid_fdinfo(5)); None if it is not set."""
    found = _TIMER_VALUE.search(fdinfo)
    return None if found is None else int(found[1]) * NS + int(found[2]) or None


def pidfd_process(fdinfo: str) -> Pid | None:
    """The process of a pidfd, from its fdinfo (proc_pid_fdinfo(5)); None once it has ended, or if it is not visible."""
    found = _PIDFD.search(fdinfo)
    return Pid(int(found[1])) if found is not None and int(found[1]) > 0 else None


class CodeMapping(NamedTuple):
    """An executable mapping with a name (proc_pid_maps(5))."""

    start: int
    end: int
    offset: int
    """Offset in the mapped file, in bytes."""
    inode: int
    path: str
    """Path in the process's own mount namespace; "[vdso]" and the like are not files."""


def code_mappings(lines: Iterable[str]) -> Iterator[CodeMapping]:
    """The executable, named mappings among the lines of a maps file."""
    for line in lines:
        part = line.rstrip("\n").split(maxsplit=5)
        if len(part) == 6 and "x" in part[1]:
            start, end = part[0].split("-")
            yield CodeMapping(int(start, 16), int(end, 16), int(part[2], 16), int(part[4]), part[5])


class MountLine(NamedTuple):
    """A line of mountinfo (proc_pid_mountinfo(5)).

    Fields that may contain spaces are still escaped (see `unescaped`).
    """

    id: str
    device: str
    """MAJOR:MINOR of the file system."""
    root: str
    """The part of the file system that is mounted."""
    place: str
    options: str
    kind: str
    """Type of the file system, such as "ext4"."""
    source: str
    super_options: str


def mountinfo(text: str) -> Iterator[MountLine]:
    """The complete lines of a mountinfo file."""
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 6 and len(right) >= 3:
            yield MountLine(left[0], *left[2:6], *right[:3])


def unescaped(word: str) -> str:
    r"""Mount points and sources with \040 and the like replaced by space, tab, newline and backslash."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), word)


class SyscallLine(NamedTuple):
    """The fields of /proc/PID/task/TID/syscall (proc_pid_syscall(5))."""

    number: int
    """Number of the system call; -1 if the thread is blocked outside one."""
    args: tuple[int, ...]
    sp: int
    ip: int


def parse_syscall(text: str) -> SyscallLine | None:
    """The fields of the text; None while the thread runs, or if the text is empty."""
    words = text.split()
    if len(words) < 3:
        return None
    *args, sp, ip = (int(word, 16) for word in words[1:])
    return SyscallLine(int(words[0]), tuple(args), sp, ip)
