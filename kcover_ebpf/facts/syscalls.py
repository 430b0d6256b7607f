"""System call numbers by architecture, and the family of waiting each call belongs to.

The only place with system call numbers. Sources: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (arm64); from 424 on they are the same. Calls that are not listed are
waits of an unknown kind, which the verdict handles as such.
"""

from __future__ import annotations

from enum import Enum

from kcover_ebpf.facts.kernel import NO_SYSCALL


class Family(Enum):
    """What a thread in a call of this family waits for."""

    __hash__ = (
        object.__hash__
    )  # members are compared by identity; Enum's own is a call of Python for each look-up

    NONE = "none"
    FUTEX = "futex"
    YIELD = "yield"
    SLEEP = "sleep"
    POLL = "poll"
    NETWORK = "network"
    READ = "read"
    WRITE = "write"
    FILE = "file"
    CHILD = "child"
    LOCK = "lock"
    IOCTL = "ioctl"
    SIGNAL = "signal"
    ASYNC_IO = "async_io"
    MEMORY = "memory"
    OTHER = "other"


# name: (family, x86_64, arm64); None where the architecture has no such call
_CALLS: dict[str, tuple[Family, int | None, int | None]] = {
    "futex": (Family.FUTEX, 202, 98),
    "futex_waitv": (Family.FUTEX, 449, 449),
    "futex_wait": (Family.FUTEX, 455, 455),
    "sched_yield": (Family.YIELD, 24, 124),
    "nanosleep": (Family.SLEEP, 35, 101),
    "clock_nanosleep": (Family.SLEEP, 230, 115),
    # the rest of a timed wait (poll, sleep, futex) that a stop interrupted, where the call itself was never seen
    "restart_syscall": (Family.POLL, 219, 128),
    "poll": (Family.POLL, 7, None),
    "ppoll": (Family.POLL, 271, 73),
    "select": (Family.POLL, 23, None),
    "pselect6": (Family.POLL, 270, 72),
    "epoll_wait": (Family.POLL, 232, None),
    "epoll_pwait": (Family.POLL, 281, 22),
    "epoll_pwait2": (Family.POLL, 441, 441),
    "connect": (Family.NETWORK, 42, 203),
    "accept": (Family.NETWORK, 43, 202),
    "accept4": (Family.NETWORK, 288, 242),
    "sendto": (Family.NETWORK, 44, 206),
    "recvfrom": (Family.NETWORK, 45, 207),
    "sendmsg": (Family.NETWORK, 46, 211),
    "recvmsg": (Family.NETWORK, 47, 212),
    "recvmmsg": (Family.NETWORK, 299, 243),
    "sendmmsg": (Family.NETWORK, 307, 269),
    "read": (Family.READ, 0, 63),
    "readv": (Family.READ, 19, 65),
    "pread64": (Family.READ, 17, 67),
    "preadv": (Family.READ, 295, 69),
    "preadv2": (Family.READ, 327, 286),
    "write": (Family.WRITE, 1, 64),
    "writev": (Family.WRITE, 20, 66),
    "pwrite64": (Family.WRITE, 18, 68),
    "pwritev": (Family.WRITE, 296, 70),
    "pwritev2": (Family.WRITE, 328, 287),
    "sendfile": (Family.WRITE, 40, 71),
    "splice": (Family.WRITE, 275, 76),
    "copy_file_range": (Family.WRITE, 326, 285),
    "vmsplice": (Family.WRITE, 278, 75),
    "open": (Family.FILE, 2, None),
    "openat": (Family.FILE, 257, 56),
    "openat2": (Family.FILE, 437, 437),
    "creat": (Family.FILE, 85, None),
    "close": (Family.FILE, 3, 57),
    "stat": (Family.FILE, 4, None),
    "lstat": (Family.FILE, 6, None),
    "fstat": (Family.FILE, 5, 80),
    "lseek": (Family.FILE, 8, 62),
    "access": (Family.FILE, 21, None),
    "faccessat": (Family.FILE, 269, 48),
    "faccessat2": (Family.FILE, 439, 439),
    "readlink": (Family.FILE, 89, None),
    "readlinkat": (Family.FILE, 267, 78),
    "statfs": (Family.FILE, 137, 43),
    "fstatfs": (Family.FILE, 138, 44),
    "chdir": (Family.FILE, 80, 49),
    "getxattr": (Family.FILE, 191, 8),
    "lgetxattr": (Family.FILE, 192, 9),
    "fgetxattr": (Family.FILE, 193, 10),
    "newfstatat": (Family.FILE, 262, 79),
    "statx": (Family.FILE, 332, 291),
    "getdents": (Family.FILE, 78, None),
    "getdents64": (Family.FILE, 217, 61),
    "fsync": (Family.FILE, 74, 82),
    "fdatasync": (Family.FILE, 75, 83),
    "sync": (Family.FILE, 162, 81),
    "syncfs": (Family.FILE, 306, 267),
    "sync_file_range": (Family.FILE, 277, 84),
    "truncate": (Family.FILE, 76, 45),
    "ftruncate": (Family.FILE, 77, 46),
    "readahead": (Family.FILE, 187, 213),
    "fadvise64": (Family.FILE, 221, 223),
    "fallocate": (Family.FILE, 285, 47),
    "rename": (Family.FILE, 82, None),
    "renameat": (Family.FILE, 264, 38),
    "renameat2": (Family.FILE, 316, 276),
    "mkdir": (Family.FILE, 83, None),
    "mkdirat": (Family.FILE, 258, 34),
    "unlink": (Family.FILE, 87, None),
    "unlinkat": (Family.FILE, 263, 35),
    "rmdir": (Family.FILE, 84, None),
    "link": (Family.FILE, 86, None),
    "linkat": (Family.FILE, 265, 37),
    "symlink": (Family.FILE, 88, None),
    "symlinkat": (Family.FILE, 266, 36),
    "chmod": (Family.FILE, 90, None),
    "fchmodat": (Family.FILE, 268, 53),
    "utimensat": (Family.FILE, 280, 88),
    # a new program is read from its file
    "execve": (Family.FILE, 59, 221),
    "execveat": (Family.FILE, 322, 281),
    "wait4": (Family.CHILD, 61, 260),
    "waitid": (Family.CHILD, 247, 95),
    # posix_spawn waits in them until the child has become another program
    "vfork": (Family.CHILD, 58, None),
    "clone": (Family.CHILD, 56, 220),
    "clone3": (Family.CHILD, 435, 435),
    "flock": (Family.LOCK, 73, 32),
    "fcntl": (Family.LOCK, 72, 25),
    "ioctl": (Family.IOCTL, 16, 29),
    "pause": (Family.SIGNAL, 34, None),
    "rt_sigsuspend": (Family.SIGNAL, 130, 133),
    "rt_sigtimedwait": (Family.SIGNAL, 128, 137),
    "io_submit": (Family.ASYNC_IO, 209, 2),
    "io_getevents": (Family.ASYNC_IO, 208, 4),
    "io_pgetevents": (Family.ASYNC_IO, 333, 292),
    "io_uring_enter": (Family.ASYNC_IO, 426, 426),
    "msync": (Family.FILE, 26, 227),
    "mmap": (Family.MEMORY, 9, 222),
    "munmap": (Family.MEMORY, 11, 215),
    "mprotect": (Family.MEMORY, 10, 226),
    "madvise": (Family.MEMORY, 28, 233),
    "semop": (Family.OTHER, 65, 193),
    "semtimedop": (Family.OTHER, 220, 192),
    "msgsnd": (Family.OTHER, 69, 189),
    "msgrcv": (Family.OTHER, 70, 188),
    "mq_timedsend": (Family.OTHER, 242, 182),
    "mq_timedreceive": (Family.OTHER, 243, 183),
    "process_vm_readv": (Family.OTHER, 310, 270),
    "exit": (Family.OTHER, 60, 93),
    "exit_group": (Family.OTHER, 231, 94),
}

FIRST_ARGUMENT_IS_FD = frozenset(
    {
        *("read", "readv", "pread64", "preadv", "preadv2", "write", "writev", "pwrite64"),
        *(
            "pwritev",
            "pwritev2",
            "sendfile",
            "fsync",
            "fdatasync",
            "syncfs",
            "ftruncate",
            "fallocate",
        ),
        *("recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4"),
        *(
            "connect",
            "ioctl",
            "flock",
            "fcntl",
            "close",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
        ),
        *("getdents64", "sync_file_range", "splice", "copy_file_range"),
        *("fstat", "lseek", "fstatfs", "fgetxattr", "readahead", "fadvise64"),
    }
)
"""Calls whose first argument is the descriptor they wait on."""


class SyscallTable:
    """Names and families of one architecture's numbers.

    `machine` is what `os.uname().machine` says; raises `KeyError` for an architecture that is not
    supported.
    """

    def __init__(self, machine: str) -> None:
        column = {"x86_64": 1, "aarch64": 2, "arm64": 2}[machine]
        self._by_number: dict[int, tuple[str, Family]] = {}
        for name, row in _CALLS.items():
            number = row[column]
            if isinstance(number, int):
                self._by_number[number] = (name, row[0])

    def name(self, number: int) -> str:
        """The call's name; "syscall 999" for one that is not listed, empty outside any call."""
        if number == NO_SYSCALL:
            return ""
        known = self._by_number.get(number)
        return known[0] if known else f"syscall {number}"

    def family(self, number: int) -> Family:
        """What the call waits for; `OTHER` for one that is not listed, `NONE` outside any call."""
        if number == NO_SYSCALL:
            return Family.NONE
        known = self._by_number.get(number)
        return known[1] if known else Family.OTHER
