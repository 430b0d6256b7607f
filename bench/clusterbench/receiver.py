"""A slow receiver of messages about incidents, here: what it takes long to answer must delay no decision."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.clusterbench.plane import POLICY
from kcover_ebpf.kube.client import ApiClient

_ANSWERS_AFTER_S = 2.0
_NAME = "slow"


class Receiver:
    """Counts what it is sent."""

    def __init__(self, folder: Path) -> None:
        """`folder`: where the list of targets is written."""
        self.count = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._targets = folder / "notifications.json"
        url = f"http://127.0.0.1:{self._server.server_port}/"
        target = {"name": _NAME, "form": "Webhook", "url": url}
        self._targets.write_text(json.dumps({"targets": [target]}), encoding="utf-8")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def wanted(self, client: ApiClient) -> tuple[str, ...]:
        """Have it notified of each phase up to the restart; the options of the controller that is to send."""
        rule = {"target": _NAME, "phases": ["Open", "Decided", "ShuttingDown"]}
        client.merge_patch(POLICY, {"spec": {"notify": [rule]}})
        return (f"--notifications={self._targets}",)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                with receiver._lock:
                    receiver.count += 1
                time.sleep(_ANSWERS_AFTER_S)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def receiver(folder: Path, *, is_wanted: bool) -> Iterator[Receiver | None]:
    """None unless it is wanted."""
    if not is_wanted:
        yield None
        return
    made = Receiver(folder)
    try:
        yield made
    finally:
        made.close()
