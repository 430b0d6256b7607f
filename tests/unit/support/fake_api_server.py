"""A tiny HTTP server that answers as an API server would: for the transport, never for its behaviour."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    status: int = 200
    body: Any = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    lines: tuple[bytes, ...] = ()
    """In place of `body`: raw chunks of a stream."""


@dataclass
class FakeApiServer:
    url: str
    requests: list[Request]


@contextmanager
def serving(
    answer: Callable[[Request], Answer], tls: ssl.SSLContext | None = None
) -> Iterator[FakeApiServer]:
    requests: list[Request] = []

    handler = _handler(requests, answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        scheme = "http" if tls is None else "https"
        yield FakeApiServer(f"{scheme}://127.0.0.1:{server.server_port}", requests)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(
    requests: list[Request], answer: Callable[[Request], Answer]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(
                self.command,
                parts.path,
                {key: values[0] for key, values in parse_qs(parts.query).items()},
                dict(self.headers),
                json.loads(raw) if raw else None,
            )
            requests.append(request)
            said = answer(request)
            data = b"".join(said.lines) if said.lines else json.dumps(said.body).encode()
            self.send_response(said.status)
            for key, value in said.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
