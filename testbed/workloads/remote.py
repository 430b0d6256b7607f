"""What a rank asks of a server, and the server: http://HOST:PORT, one that answers late and takes slowly.

    python -m testbed.workloads.remote SECONDS

It prints its address; a GET is answered after the given seconds, a PUT is read at 5 MB/s.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PART_BYTES = 1 << 20
TAKEN_BYTES_S = 5 << 20


def get(url: str) -> bytes:
    """Wait for what the server answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/")
    with connection.getresponse() as answer:
        return answer.read()


def put(url: str, seconds: float) -> None:
    """Upload for the given seconds."""

    def parts() -> Iterator[bytes]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield bytes(PART_BYTES)

    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("PUT", "/", body=parts())
    connection.getresponse().read()


class Handler(BaseHTTPRequestHandler):
    """Late, or slow."""

    late_s = 0.0

    def do_GET(self) -> None:
        """Answer late."""
        time.sleep(self.late_s)
        self._done()

    def do_PUT(self) -> None:
        """Read slowly, to the last chunk."""
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
            time.sleep(size / TAKEN_BYTES_S)
        self._done()

    def _done(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: standard error is the job's."""


def main() -> None:
    """Serve until ended."""
    Handler.late_s = float(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
