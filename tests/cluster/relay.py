"""A TCP relay before an API server that a test can cut or slow: for whoever is behind it the server is down, or far."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import yaml


class Relay:
    """Carries connections to the server of a kubeconfig; `cut` drops every one and refuses new ones.

    What goes to the server is kept back for up to `late_s` seconds, each part for another time.
    """

    def __init__(self, kubeconfig: Path, folder: Path, late_s: float = 0.0) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        address = urlsplit(server["server"])
        self._target = address.hostname or "", address.port or 443
        self._late_s = late_s
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._port = 0
        self.mend()
        server["server"] = f"https://127.0.0.1:{self._port}"
        server["tls-server-name"] = address.hostname
        _find_files(server, kubeconfig.parent)
        _find_files(config["users"][0]["user"], kubeconfig.parent)
        self.kubeconfig = folder / "relayed.kubeconfig"
        """Leads through the relay."""
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def mend(self) -> None:
        """Let connections through (again)."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Refuse new connections and drop those that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # a thread that waits in accept holds a listener that is only closed
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            for item in self._open:
                with contextlib.suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._target) as far:
            back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
            back.start()
            self._copy(near, far, self._late_s)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket, late_s: float = 0.0) -> None:
        with self._lock:
            if self._listener is None:  # cut since it was accepted
                return
            self._open.add(source)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                time.sleep(random.uniform(0.0, late_s))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)


def _find_files(entry: dict[str, Any], folder: Path) -> None:
    """Names of files in a kubeconfig are relative to its own folder."""
    for key in ("certificate-authority", "client-certificate", "client-key"):
        if key in entry:
            entry[key] = str((folder / entry[key]).resolve())
