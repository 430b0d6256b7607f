"""System call numbers by architecture, and the family of waiting each call belongs to.

The only place with system call numbers. Sources: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h (arm64); from 424 on they are the same. Calls that are not listed are
waits of an unknown kind, which the verdict handles as such.
"""

from __future__ import annotations

from enum import Enum

from kcover_ebpf.facts.kernel import NO_SYSCALL


class SyscallFamily(Enum):
    """What a thread in a call of this family waits for."""

    # members are compared by identity; Enum's own is a call of Python for each look-up
    __hash__ = object.__hash__

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
_CALLS: dict[str, tuple[SyscallFamily, int | None, int | None]] = {
    "futex": (SyscallFamily.FUTEX, 202, 98),
    "futex_waitv": (SyscallFamily.FUTEX, 449, 449),
    "futex_wait": (SyscallFamily.FUTEX, 455, 455),
    "sched_yield": (SyscallFamily.YIELD, 24, 124),
    "nanosleep": (SyscallFamily.SLEEP, 35, 101),
    "clock_nanosleep": (SyscallFamily.SLEEP, 230, 115),
    # the rest of a timed wait (poll, sleep, futex) that a stop interrupted, where the call itself was never seen
    "restart_syscall": (SyscallFamily.POLL, 219, 128),
    "poll": (SyscallFamily.POLL, 7, None),
    "ppoll": (SyscallFamily.POLL, 271, 73),
    "select": (SyscallFamily.POLL, 23, None),
    "pselect6": (SyscallFamily.POLL, 270, 72),
    "epoll_wait": (SyscallFamily.POLL, 232, None),
    "epoll_pwait": (SyscallFamily.POLL, 281, 22),
    "epoll_pwait2": (SyscallFamily.POLL, 441, 441),
    "connect": (SyscallFamily.NETWORK, 42, 203),
    "accept": (SyscallFamily.NETWORK, 43, 202),
    "accept4": (SyscallFamily.NETWORK, 288, 242),
    "sendto": (SyscallFamily.NETWORK, 44, 206),
    "recvfrom": (SyscallFamily.NETWORK, 45, 207),
    "sendmsg": (SyscallFamily.NETWORK, 46, 211),
    "recvmsg": (SyscallFamily.NETWORK, 47, 212),
    "recvmmsg": (SyscallFamily.NETWORK, 299, 243),
    "sendmmsg": (SyscallFamily.NETWORK, 307, 269),
    "read": (SyscallFamily.READ, 0, 63),
    "readv": (SyscallFamily.READ, 19, 65),
    "pread64": (SyscallFamily.READ, 17, 67),
    "preadv": (SyscallFamily.READ, 295, 69),
    "preadv2": (SyscallFamily.READ, 327, 286),
    "write": (SyscallFamily.WRITE, 1, 64),
    "writev": (SyscallFamily.WRITE, 20, 66),
    "pwrite64": (SyscallFamily.WRITE, 18, 68),
    "pwritev": (SyscallFamily.WRITE, 296, 70),
    "pwritev2": (SyscallFamily.WRITE, 328, 287),
    "sendfile": (SyscallFamily.WRITE, 40, 71),
    "splice": (SyscallFamily.WRITE, 275, 76),
    "copy_file_range": (SyscallFamily.WRITE, 326, 285),
    "vmsplice": (SyscallFamily.WRITE, 278, 75),
    "open": (SyscallFamily.FILE, 2, None),
    "openat": (SyscallFamily.FILE, 257, 56),
    "openat2": (SyscallFamily.FILE, 437, 437),
    "creat": (SyscallFamily.FILE, 85, None),
    "close": (SyscallFamily.FILE, 3, 57),
    "stat": (SyscallFamily.FILE, 4, None),
    "lstat": (SyscallFamily.FILE, 6, None),
    "fstat": (SyscallFamily.FILE, 5, 80),
    "lseek": (SyscallFamily.FILE, 8, 62),
    "access": (SyscallFamily.FILE, 21, None),
    "faccessat": (SyscallFamily.FILE, 269, 48),
    "faccessat2": (SyscallFamily.FILE, 439, 439),
    "readlink": (SyscallFamily.FILE, 89, None),
    "readlinkat": (SyscallFamily.FILE, 267, 78),
    "statfs": (SyscallFamily.FILE, 137, 43),
    "fstatfs": (SyscallFamily.FILE, 138, 44),
    "chdir": (SyscallFamily.FILE, 80, 49),
    "getxattr": (SyscallFamily.FILE, 191, 8),
    "lgetxattr": (SyscallFamily.FILE, 192, 9),
    "fgetxattr": (SyscallFamily.FILE, 193, 10),
    "newfstatat": (SyscallFamily.FILE, 262, 79),
    "statx": (SyscallFamily.FILE, 332, 291),
    "getdents": (SyscallFamily.FILE, 78, None),
    "getdents64": (SyscallFamily.FILE, 217, 61),
    "fsync": (SyscallFamily.FILE, 74, 82),
    "fdatasync": (SyscallFamily.FILE, 75, 83),
    "sync": (SyscallFamily.FILE, 162, 81),
    "syncfs": (SyscallFamily.FILE, 306, 267),
    "sync_file_range": (SyscallFamily.FILE, 277, 84),
    "truncate": (SyscallFamily.FILE, 76, 45),
    "ftruncate": (SyscallFamily.FILE, 77, 46),
    "readahead": (SyscallFamily.FILE, 187, 213),
    "fadvise64": (SyscallFamily.FILE, 221, 223),
    "fallocate": (SyscallFamily.FILE, 285, 47),
    "rename": (SyscallFamily.FILE, 82, None),
    "renameat": (SyscallFamily.FILE, 264, 38),
    "renameat2": (SyscallFamily.FILE, 316, 276),
    "mkdir": (SyscallFamily.FILE, 83, None),
    "mkdirat": (SyscallFamily.FILE, 258, 34),
    "unlink": (SyscallFamily.FILE, 87, None),
    "unlinkat": (SyscallFamily.FILE, 263, 35),
    "rmdir": (SyscallFamily.FILE, 84, None),
    "link": (SyscallFamily.FILE, 86, None),
    "linkat": (SyscallFamily.FILE, 265, 37),
    "symlink": (SyscallFamily.FILE, 88, None),
    "symlinkat": (SyscallFamily.FILE, 266, 36),
    "chmod": (SyscallFamily.FILE, 90, None),
    "fchmodat": (SyscallFamily.FILE, 268, 53),
    "utimensat": (SyscallFamily.FILE, 280, 88),
    # a new program is read from its file
    "execve": (SyscallFamily.FILE, 59, 221),
    "execveat": (SyscallFamily.FILE, 322, 281),
    "wait4": (SyscallFamily.CHILD, 61, 260),
    "waitid": (SyscallFamily.CHILD, 247, 95),
    # posix_spawn waits in them until the child has become another program
    "vfork": (SyscallFamily.CHILD, 58, None),
    "clone": (SyscallFamily.CHILD, 56, 220),
    "clone3": (SyscallFamily.CHILD, 435, 435),
    "flock": (SyscallFamily.LOCK, 73, 32),
    "fcntl": (SyscallFamily.LOCK, 72, 25),
    "ioctl": (SyscallFamily.IOCTL, 16, 29),
    "pause": (SyscallFamily.SIGNAL, 34, None),
    "rt_sigsuspend": (SyscallFamily.SIGNAL, 130, 133),
    "rt_sigtimedwait": (SyscallFamily.SIGNAL, 128, 137),
    "io_submit": (SyscallFamily.ASYNC_IO, 209, 2),
    "io_getevents": (SyscallFamily.ASYNC_IO, 208, 4),
    "io_pgetevents": (SyscallFamily.ASYNC_IO, 333, 292),
    "io_uring_enter": (SyscallFamily.ASYNC_IO, 426, 426),
    "msync": (SyscallFamily.FILE, 26, 227),
    "mmap": (SyscallFamily.MEMORY, 9, 222),
    "munmap": (SyscallFamily.MEMORY, 11, 215),
    "mprotect": (SyscallFamily.MEMORY, 10, 226),
    "madvise": (SyscallFamily.MEMORY, 28, 233),
    "semop": (SyscallFamily.OTHER, 65, 193),
    "semtimedop": (SyscallFamily.OTHER, 220, 192),
    "msgsnd": (SyscallFamily.OTHER, 69, 189),
    "msgrcv": (SyscallFamily.OTHER, 70, 188),
    "mq_timedsend": (SyscallFamily.OTHER, 242, 182),
    "mq_timedreceive": (SyscallFamily.OTHER, 243, 183),
    "process_vm_readv": (SyscallFamily.OTHER, 310, 270),
    "exit": (SyscallFamily.OTHER, 60, 93),
    "exit_group": (SyscallFamily.OTHER, 231, 94),
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

# name: (x86_64, arm64). Calls that our readers never need and that an attacker inside one would use.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "iopl": (172, None),
    "ioperm": (173, None),
}


class SyscallTable:
    """Names and families of one architecture's numbers.

    `machine` is what `os.uname().machine` says; raises `KeyError` for an architecture that is not
    supported.
    """

    def __init__(self, machine: str) -> None:
        column = {"x86_64": 1, "aarch64": 2, "arm64": 2}[machine]
        self._by_number: dict[int, tuple[str, SyscallFamily]] = {}
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

    def family(self, number: int) -> SyscallFamily:
        """What the call waits for; `OTHER` for one that is not listed, `NONE` outside any call."""
        if number == NO_SYSCALL:
            return SyscallFamily.NONE
        known = self._by_number.get(number)
        return known[1] if known else SyscallFamily.OTHER


def refused_numbers(machine: str) -> tuple[int, ...]:
    """Numbers of the calls that a process which reads tenants' files must not make.

    Empty unless the machine is x86_64 or arm64.
    """
    column = {"x86_64": 0, "aarch64": 1, "arm64": 1}.get(machine)
    if column is None:
        return ()
    return tuple(number for row in _REFUSED.values() if (number := row[column]) is not None)
