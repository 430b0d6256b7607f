"""Whether a part of the test bed answers: asked over its own health port, in its own network."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from testbed.cluster import network, shell
from testbed.cluster.errors import Failure

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """GET answers 200; without checking who answers, as it is our own machine."""

    netns: str
    url: str

    def __call__(self) -> bool:
        try:
            return network.within(self.netns, self._get)
        except OSError:
            return False

    def _get(self) -> bool:
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port or 0
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", parts.path)
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class SocketProbe:
    """A process accepts on a Unix socket."""

    path: Path

    def __call__(self) -> bool:
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.settimeout(TIMEOUT_S)
            try:
                attempt.connect(str(self.path))
            except OSError:
                return False
            return True


@dataclass(frozen=True, slots=True)
class PortProbe:
    """A process accepts on a TCP port of the host's loopback."""

    port: int

    def __call__(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S).close()
        except OSError:
            return False
        return True


def wait(what: str, ready: Callable[[], bool], seconds: float, log: Path | None = None) -> None:
    """Wait until it is ready; raises Failure with the end of its log when it is not in time."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            hint = ""
            if log is not None and log.exists():
                hint = f": {shell.last_line(log.read_text(errors='replace'))} (log: {log})"
            raise Failure(f"{what} is not ready after {seconds:.0f} s{hint}")
        time.sleep(0.1)
