"""A service outside of the job, over HTTP and a Unix socket; the client chooses how long the answer takes.

It runs outside the job; the ranks use the functions. GET /late/S is answered after S seconds, GET
/busy/S with 503 until S seconds after the first one, GET /shard/S with a stream that pauses for S
seconds in the middle. PUT /upload/S takes S seconds to read and as long again to answer.
"""

import http.client
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from urllib.parse import urlsplit

from bench.lifebench.life import folder

ADDRESS = "service.url"
SOCKET = "service.sock"
PARTS, PART_BYTES, PART_S = 40, 1 << 16, 0.1


class Handler(BaseHTTPRequestHandler):
    """One request, in HTTP/1.0."""

    busy_until_s: float | None = None

    def do_GET(self) -> None:
        """Late, busy, or in two halves."""
        kind, seconds = self._asked()
        if kind == "late":
            time.sleep(seconds)
        if kind == "busy":
            until_s = Handler.busy_until_s or time.monotonic() + seconds
            Handler.busy_until_s = until_s
            self._answer(503 if time.monotonic() < until_s else 200)
        elif kind == "shard":
            self._shard(seconds)
        else:
            self._answer(200)

    def do_PUT(self) -> None:
        """Read it slowly, and put it together slowly."""
        _, seconds = self._asked()
        left = int(self.headers["Content-Length"])
        pause_s = seconds * PART_BYTES / left
        while left > 0:
            left -= len(self.rfile.read(min(left, PART_BYTES)))
            time.sleep(pause_s)
        time.sleep(seconds)
        self._answer(200)

    def do_POST(self) -> None:
        """Metrics: read, answered."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200)

    def _asked(self) -> tuple[str, float]:
        _, kind, seconds = self.path.split("/")
        return kind, float(seconds)

    def _shard(self, pause_s: float) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(2 * PARTS * PART_BYTES))
        self.end_headers()
        for part in range(2 * PARTS):
            if part == PARTS:
                time.sleep(pause_s)
            self.wfile.write(bytes(PART_BYTES))
            time.sleep(PART_S)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep quiet."""


class Answers(StreamRequestHandler):
    """A connection of the Unix socket: each line is a number of seconds."""

    def handle(self) -> None:
        """Answer each after the given seconds."""
        for line in self.rfile:
            time.sleep(float(line))
            self.wfile.write(b"ok\n")


def url() -> str:
    """Where the service listens, once it does."""
    path = folder() / ADDRESS
    while not path.exists():
        time.sleep(0.05)
    return path.read_text()


def get(path: str) -> int:
    """The status of the answer, once it is read."""
    return _request("GET", path, None)


def put(path: str, body: bytes) -> int:
    """Upload, and the status of the answer."""
    return _request("PUT", path, body)


def post(path: str, body: bytes) -> int:
    """Send metrics, and the status of the answer."""
    return _request("POST", path, body)


def _request(method: str, path: str, body: bytes | None) -> int:
    connection = http.client.HTTPConnection(urlsplit(url()).netloc)
    connection.request(method, path, body=body)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


class Local:
    """A connection to the service's Unix socket."""

    def __init__(self) -> None:
        url()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(folder() / SOCKET))

    def ask(self, seconds: float) -> None:
        """Request an answer that takes the given seconds, and wait for it."""
        self._socket.sendall(f"{seconds}\n".encode())
        self._socket.recv(16)

    def fileno(self) -> int:
        """For a poll."""
        return self._socket.fileno()


def main() -> None:
    """Serve until killed."""
    server = ThreadingHTTPServer((os.environ["LIFE_ADDRESS"], 0), Handler)
    local = ThreadingUnixStreamServer(str(folder() / SOCKET), Answers)
    local.daemon_threads = True
    threading.Thread(target=local.serve_forever, daemon=True).start()
    part = folder() / f"{ADDRESS}.part"
    part.write_text("http://{}:{}".format(*server.server_address))
    part.rename(folder() / ADDRESS)
    server.serve_forever()


if __name__ == "__main__":
    main()
