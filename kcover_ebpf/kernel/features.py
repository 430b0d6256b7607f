"""Features of this kernel, found by loading a tiny program and reading the errno.

Versions are never compared: distributions backport features, and configurations differ.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from ctypes import c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host import capabilities
from kcover_ebpf.kernel.libbpf import library

BTF = Path("/sys/kernel/btf/vmlinux")
_KPROBES = Path("/sys/bus/event_source/devices/kprobe")

# include/uapi/linux/bpf.h
_PROG_KPROBE, _PROG_TRACING = 2, 26
_TRACE_RAW_TP, _TRACE_FENTRY, _TRACE_ITER, _TRACE_UPROBE_MULTI = 23, 24, 28, 48
_MAP_RINGBUF = 27
_LINK_CREATE = 28
_BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}

# include/linux/proc_ns.h: PROC_PID_INIT_INO, the same number since Linux 3.8
_FIRST_PID_NAMESPACE = 0xEFFFFFFC

FOREIGN_NUMBERS = (
    "this pid namespace is not the host's, so the kernel's process numbers mean other processes here: "
    "run on the host, with --pid=host (docker), or with hostPID: true (a pod)"
)
"""Why nothing can be observed from inside a container with its own pid namespace."""

_RETURN_ZERO = bytes.fromhex("b700000000000000 9500000000000000")


def has_kprobes() -> bool:
    """True if the kernel is built with kprobes (since Linux 4.17 they are an event source of perf)."""
    return _KPROBES.exists()


class _LoadOptions(ctypes.Structure):
    """The beginning of `struct bpf_prog_load_opts` (tools/lib/bpf/bpf.h)."""

    _fields_ = (
        ("sz", c_size_t),
        ("attempts", c_int),
        ("expected_attach_type", c_uint32),
        ("prog_btf_fd", c_uint32),
        ("prog_flags", c_uint32),
        ("prog_ifindex", c_uint32),
        ("kern_version", c_uint32),
        ("attach_btf_id", c_uint32),
        ("attach_prog_fd", c_uint32),
        ("attach_btf_obj_fd", c_uint32),
    )


class _UprobeMultiLink(ctypes.Structure):
    """`union bpf_attr` of BPF_LINK_CREATE with its member `uprobe_multi`."""

    _fields_ = (
        ("prog_fd", c_uint32),
        ("target_fd", c_uint32),
        ("attach_type", c_uint32),
        ("link_flags", c_uint32),
        ("path", c_void_p),
        ("offsets", c_void_p),
        ("ref_ctr_offsets", c_uint64),
        ("cookies", c_uint64),
        ("count", c_uint32),
        ("flags", c_uint32),
        ("pid", c_uint32),
        ("pad", c_uint32),
    )


@dataclass(frozen=True, slots=True)
class KernelFeature:
    """A feature that programs may need, and whether this kernel has it."""

    name: str
    found: bool
    detail: str
    """What it is used for; if it is missing, also the kernel's answer."""


def require_privileges() -> None:
    """Raise `CannotObserve`, which says what to do, if loading BPF cannot succeed."""
    lacking = capabilities.missing()
    if lacking:
        raise CannotObserve(f"missing {' and '.join(lacking)}: run as root, or grant them")
    if not has_host_numbers():
        raise CannotObserve(FOREIGN_NUMBERS)
    if not BTF.exists():
        raise CannotObserve(
            f"this kernel has no type information ({BTF}): "
            "it must be built with CONFIG_DEBUG_INFO_BTF=y, and /sys mounted"
        )


def has_host_numbers() -> bool:
    """True if our process numbers are those of the initial pid namespace, which BPF programs use.

    Raises `CannotObserve` if /proc cannot be read.
    """
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError as error:
        raise CannotObserve(
            f"cannot read /proc/self/ns/pid ({error.strerror}): mount /proc"
        ) from error


def kernel_features() -> tuple[KernelFeature, ...]:
    """The ways to attach programs on this kernel; needs the privileges to load BPF."""
    return tuple(_try_all())


def _try_all() -> Iterator[KernelFeature]:
    yield _feature("ring buffer", "events", _create_ring())
    for name, target, attach_type, purpose in (
        ("iterator over threads", "task", _TRACE_ITER, "the base layer"),
        ("iterator over descriptors", "task_file", _TRACE_ITER, "edges between processes"),
        ("typed tracepoints", "sched_process_exit", _TRACE_RAW_TP, "announced faults"),
        ("fentry", "vfs_read", _TRACE_FENTRY, "not needed; cheaper probes of kernel functions"),
    ):
        yield _feature(name, purpose, _load(_PROG_TRACING, attach_type, target))
    missing = 0 if has_kprobes() else errno.ENOENT
    yield _feature("kprobe", "faults that drivers report", missing)
    yield _feature("uprobe_multi", "optional probes of collective libraries", _link_uprobes())


def _feature(name: str, purpose: str, code: int) -> KernelFeature:
    return KernelFeature(name, code == 0, f"{purpose}: {os.strerror(code)}" if code else purpose)


def _closed(fd: int) -> int:
    """Close a new descriptor and return 0, or the errno if there is none."""
    if fd < 0:
        return -fd
    os.close(fd)
    return 0


def _create_ring() -> int:
    size = os.sysconf("SC_PAGE_SIZE")
    return _closed(library().bpf_map_create(_MAP_RINGBUF, b"try", 0, 0, size, None))


def _load(kind: int, attach_type: int, target: str | None) -> int:
    return _closed(_load_fd(kind, attach_type, target))


def _load_fd(kind: int, attach_type: int, target: str | None) -> int:
    """Descriptor of a program that does nothing, or the negative errno."""
    options = _LoadOptions(ctypes.sizeof(_LoadOptions), expected_attach_type=attach_type)
    if target is not None:
        number = library().libbpf_find_vmlinux_btf_id(target.encode(), attach_type)
        if number < 0:
            return int(number)
        options.attach_btf_id = number
    count = len(_RETURN_ZERO) // 8
    arguments = (kind, b"try", b"GPL", _RETURN_ZERO, count, ctypes.byref(options))
    return int(library().bpf_prog_load(*arguments))


def _link_uprobes() -> int:
    """Try a link of several uprobes.

    A kernel that knows such links reads the path, which is not a file, and returns EBADF.
    """
    fd = _load_fd(_PROG_KPROBE, _TRACE_UPROBE_MULTI, None)
    if fd < 0:
        return -fd
    path, offset = ctypes.create_string_buffer(b"/"), c_uint64(0)
    link = _UprobeMultiLink(
        prog_fd=fd,
        attach_type=_TRACE_UPROBE_MULTI,
        path=ctypes.addressof(path),
        offsets=ctypes.addressof(offset),
        count=1,
    )
    libc = ctypes.CDLL(None, use_errno=True)
    number = _BPF_SYSCALL[os.uname().machine]
    libc.syscall(number, _LINK_CREATE, ctypes.byref(link), ctypes.sizeof(link))
    os.close(fd)
    code = ctypes.get_errno()
    return 0 if code == errno.EBADF else code
