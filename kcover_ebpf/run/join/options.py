"""The `--join` options, checked before anything is started."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError

PORT = 29479
"""Port of the coordinator unless another one is given; next to those that launchers use."""
_LEAST_SECRET_BYTES, _MOST_SECRET_BYTES = 16, 4096
_MOST_HOSTS = 256
_MOST_NAME = 253


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """How this run joins those on the other hosts of the job."""

    host: str
    port: int
    hosts: int
    """Number of hosts of the job, including this one."""
    secret: bytes
    """Secret shared by all hosts of the job."""


def make(join: str | None, hosts: int | None, secret: Path | None) -> JoinOptions | None:
    """From the options of the command; None if none is given. Raises `UsageError`."""
    if join is None:
        if hosts is not None or secret is not None:
            raise UsageError("--join-hosts and --join-secret need --join HOST")
        return None
    if hosts is None or secret is None:
        raise UsageError("--join needs --join-hosts N and --join-secret FILE as well")
    if not 2 <= hosts <= _MOST_HOSTS:
        raise UsageError(f"--join-hosts {hosts}: give the number of hosts, 2 to {_MOST_HOSTS}")
    host, port = _address(join)
    return JoinOptions(host, port, hosts, read_secret(secret))


def _address(text: str) -> tuple[str, int]:
    """HOST, HOST:PORT, or [ADDRESS]:PORT for an address with colons."""
    host, colon, port = text.rpartition(":")
    if not colon or (host.count(":") and not host.endswith("]")):
        host, port = text, str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or len(host) > _MOST_NAME or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--join {text}: give HOST or HOST:PORT")
    try:
        socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--join {text}: {error.strerror}; give a name or address") from error
    return host, int(port)


def read_secret(path: Path) -> bytes:
    """The shared secret, stripped of white space; raises `UsageError` if others may read the file."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            secret = file.read(_MOST_SECRET_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--join-secret {path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
        raise UsageError(f"--join-secret {path}: other users may read it; chmod 600 {path}")
    if len(secret) > _MOST_SECRET_BYTES:
        raise UsageError(f"--join-secret {path}: larger than {_MOST_SECRET_BYTES} bytes")
    secret = secret.strip()
    if len(secret) < _LEAST_SECRET_BYTES:
        raise UsageError(
            f"--join-secret {path}: at least {_LEAST_SECRET_BYTES} bytes are needed; "
            f"make one: (umask 077; openssl rand -hex 32 > {path})"
        )
    return secret
