"""The plug-in that asks Prometheus for pods that keep GPUs idle."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from plugins import idle_pods


class Prometheus(ThreadingHTTPServer):
    answer = b""
    asked = ""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Prometheus)
        self.server.asked = parse_qs(urlsplit(self.path).query)["query"][0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[Prometheus]:
    with Prometheus(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url_of(server: Prometheus) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def answer(*pods: tuple[str, str]) -> bytes:
    result = [{"metric": {"namespace": n, "pod": p}, "value": [1, "0"]} for n, p in pods]
    return json.dumps({"status": "success", "data": {"result": result}}).encode()


def test_examine__idle_pods_of_the_node(prometheus: Prometheus) -> None:
    prometheus.answer = answer(("team", "notebook-1"), ("ml", "dev"))
    code, evidence = idle_pods.examine(url_of(prometheus), "48", "gpu-02")
    assert code == idle_pods.PROBLEM
    assert evidence == "idle for 48 hours, and keep GPUs: ml/dev, team/notebook-1"
    assert "[48h:5m]) == 0 and (max by (namespace, pod) (kcover_gpu_use{" in prometheus.asked
    assert prometheus.asked.count('node="gpu-02"') == 2
    assert prometheus.asked.endswith("offset 48h)")


def test_examine__many_and_none(prometheus: Prometheus) -> None:
    prometheus.answer = answer(*[("ml", f"pod-{number:02}") for number in range(10)])
    code, evidence = idle_pods.examine(url_of(prometheus), "1", "")
    assert evidence.endswith("ml/pod-07 and 2 more")
    assert "node=" not in prometheus.asked
    prometheus.answer = answer()
    code, evidence = idle_pods.examine(url_of(prometheus), "1", "")
    assert (code, evidence) == (idle_pods.PASS, "no pod has kept a GPU idle for 1 hours")


@pytest.mark.parametrize(
    "wrong", [b"", b"[]", b'{"data": {"result": [{}]}}', b'{"data": {"result": 5}}', b"\xff"]
)
def test_examine__an_answer_that_is_none(prometheus: Prometheus, wrong: bytes) -> None:
    prometheus.answer = wrong
    code, evidence = idle_pods.examine(url_of(prometheus), "48", "")
    assert (code, evidence.startswith("Prometheus has no answer")) == (idle_pods.UNKNOWN, True)


def test_examine__a_server_that_speaks_no_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.recv(4096)

        Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, evidence = idle_pods.examine(url, "48", "")
    assert (code, evidence.startswith("Prometheus has no answer")) == (idle_pods.UNKNOWN, True)


@pytest.mark.parametrize(
    ("url", "hours"),
    [("", "48"), ("file:///etc/passwd", "48"), ("http://x", "two"), ("http://x", "0")],
)
def test_examine__what_is_not_set(url: str, hours: str) -> None:
    code, evidence = idle_pods.examine(url, hours, "")
    assert (code, evidence.startswith("set PROMETHEUS_URL")) == (idle_pods.UNKNOWN, True)
