"""Asks the RAS threads of a job's processes, in their network namespace, without a client binary.

Several processes of one namespace share the port (SO_REUSEPORT): a connection lands on any of them,
also on one that is stopped, where it is accepted and never answered. So every step has a short
time-out, and who asks tries several times.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Collection
from dataclasses import dataclass

from kcover_ebpf.hardware.ras import RasError, RasReport, parse

DEFAULT_ADDRESS = ("localhost", 28028)
_PROTOCOL = 2
_CLONE_NEWNET = 0x40000000
_REPORT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds, and how often to try."""

    connect_s: float = 1.0
    collect_s: float = 5.0
    """Time for the RAS threads of all ranks to answer; NCCL's own default."""
    tries: int = 4


def address_of(environ_value: str | None) -> tuple[str, int]:
    """The address in NCCL_RAS_ADDR ("host:port", "[ipv6]:port"), or the default."""
    if not environ_value:
        return DEFAULT_ADDRESS
    host, _, port = environ_value.rpartition(":")
    if not host or not port.isdecimal():
        return DEFAULT_ADDRESS
    return host.strip("[]"), int(port)


def ask(
    address: tuple[str, int],
    own_pids: Collection[int],
    patience: Patience = Patience(),
    netns_pid: int | None = None,
) -> RasReport:
    """A report that concerns one of `own_pids` (numbers in the ranks' pid namespace).

    `netns_pid`: a process whose network namespace is entered for the connection alone. Raises
    `RasError` when no try gives one.
    """
    trouble = "no answer"
    for _ in range(patience.tries):
        try:
            with _connected(address, patience.connect_s, netns_pid) as connection:
                report = parse(_converse(connection, patience))
        except (OSError, RasError) as error:
            trouble = str(error) or type(error).__name__
            continue
        if report.concerns(own_pids):
            return report
        trouble = "another job answered"
    raise RasError(trouble)


def _converse(connection: socket.socket, patience: Patience) -> str:
    connection.settimeout(patience.connect_s)
    with connection.makefile("rwb") as stream:

        def say(line: str) -> str:
            stream.write(line.encode() + b"\n")
            stream.flush()
            return stream.readline(4096).decode("utf-8", "replace").strip()

        greeting = say(f"CLIENT PROTOCOL {_PROTOCOL}")
        if not greeting.startswith("SERVER PROTOCOL "):
            raise RasError(f"not a RAS server: {greeting[:80]!r}")
        say(f"TIMEOUT {int(patience.collect_s)}")
        # older versions answer with an error, and then report in text
        say("SET FORMAT json")
        connection.settimeout(2 * patience.collect_s + 1)
        stream.write(b"VERBOSE STATUS\n")
        stream.flush()
        return stream.read(_REPORT_BYTES).decode("utf-8", "replace")


def _connected(address: tuple[str, int], timeout_s: float, netns_pid: int | None) -> socket.socket:
    if netns_pid is None:
        return socket.create_connection(address, timeout_s)
    made: list[socket.socket | OSError] = []
    # a thread of its own: a namespace is entered by one thread, and this one need not come back
    thread = threading.Thread(target=_connect_inside, args=(address, timeout_s, netns_pid, made))
    thread.start()
    thread.join()
    (result,) = made
    if isinstance(result, OSError):
        raise result
    return result


def _connect_inside(
    address: tuple[str, int],
    timeout_s: float,
    netns_pid: int,
    made: list[socket.socket | OSError],
) -> None:
    try:
        namespace = os.open(f"/proc/{netns_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace, _CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(namespace)
        made.append(socket.create_connection(address, timeout_s))
    except OSError as error:
        made.append(error)
