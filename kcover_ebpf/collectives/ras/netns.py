"""Network namespaces of other processes: connects inside them, and finds the owner of the other end."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import threading

from kcover_ebpf.host import procfs
from kcover_ebpf.host.capabilities import Capability, raised
from kcover_ebpf.ids import Pid

_CLONE_NEWNET = 0x40000000


def namespace_of(pid: Pid | None = None) -> str:
    """Identity of a process's network namespace, ours for None; raises `OSError` if the process is gone."""
    return str((procfs.PROC / (str(pid) if pid else "self") / "ns/net").readlink())


def pid_inside(pid: Pid) -> int:
    """The process's number in its own pid namespace; its number here if that cannot be read."""
    numbers = procfs.namespace_numbers(pid)
    return numbers[-1] if numbers else pid


def connect(address: tuple[str, int], timeout_s: float, pid: Pid) -> socket.socket:
    """A connection made in the network namespace of `pid`; raises `OSError`.

    A socket belongs to the namespace in which it was created. Entering another one takes CAP_SYS_ADMIN and a
    separate thread, which need not return to ours.
    """
    if namespace_of(pid) == namespace_of():
        return socket.create_connection(address, timeout_s)
    made: list[socket.socket | OSError] = []
    thread = threading.Thread(target=_connect_inside, args=(address, timeout_s, pid, made))
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise result
    return result


def _connect_inside(
    address: tuple[str, int], timeout_s: float, pid: Pid, made: list[socket.socket | OSError]
) -> None:
    try:
        namespace = os.open(procfs.PROC / str(pid) / "ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with raised(Capability.SYS_ADMIN):
                _enter(namespace)
        finally:
            os.close(namespace)
        made.append(socket.create_connection(address, timeout_s))
    except OSError as error:
        made.append(error)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"entering the network namespace: {os.strerror(code)}")


def holder_inode(connection: socket.socket, pid: Pid) -> int | None:
    """Inode of the socket at the other end of a connection, within the namespace of `pid`."""
    ours, theirs = connection.getsockname()[:2], connection.getpeername()[:2]
    for table in ("tcp", "tcp6"):
        # line by line, because a job may have very many connections
        try:
            with (procfs.PROC / str(pid) / "net" / table).open() as lines:
                for line in lines:
                    words = line.split(maxsplit=10)
                    ends = tuple(map(_endpoint, words[1:3]))
                    if len(words) > 9 and ends == (theirs, ours):
                        return int(words[9]) or None
        except OSError:
            continue
    return None


def _endpoint(text: str) -> tuple[str, int] | None:
    """Address and port in the form of /proc/net/tcp: four-byte words in the host's byte order."""
    raw, _, port = text.partition(":")
    try:
        data = bytes.fromhex(raw)
        packed = b"".join(data[i : i + 4][::-1] for i in range(0, len(data), 4))
        address = ipaddress.ip_address(packed)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address), int(port, 16)
    except ValueError:
        return None
