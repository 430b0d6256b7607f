"""A TCP relay before an API server that a test can cut: for whoever is behind it the server is down."""

from __future__ import annotations

import contextlib
import socket
import threading


class Relay:
    """Listens on a port of its own; `cut` drops every connection and refuses new ones."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.mend()

    def mend(self) -> None:
        """Let connections through (again)."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
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
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._target) as far:
            back = threading.Thread(target=self._copy, args=(far, near), daemon=True)
            back.start()
            self._copy(near, far)
            back.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with self._lock:
            self._open.add(source)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
