"""An API server that can be taken away: a proxy in front of it, which a test shuts."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import yaml


class Gate:
    """Passes connections on while it is open; closes them all when it is shut."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        url = urlsplit(cluster["server"])
        self._target = str(url.hostname), url.port or 443
        self._listener = socket.create_server(("127.0.0.1", 0))
        cluster["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        for holder, keys in (
            (cluster, ("certificate-authority",)),
            (config["users"][0]["user"], ("client-certificate", "client-key")),
        ):
            for key in keys:
                if key in holder:
                    holder[key] = str((kubeconfig.parent / holder[key]).resolve())
        self.kubeconfig = folder / "gated.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self._open = True
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def shut(self) -> None:
        """The server is away from now on."""
        with self._lock:
            self._open = False
            for each in self._connections:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def open(self) -> None:
        """It is back."""
        self._open = True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if not self._open:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._connections += [client, server]
            threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()

    def close(self) -> None:
        """End it, with all that goes through it."""
        self.shut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()


def _pass_on(client: socket.socket, server: socket.socket) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
