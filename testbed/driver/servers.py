"""Real servers of others on this host, built from Go modules: a store of S3's kind, a collector of OpenTelemetry."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.cluster import build, versions
from testbed.ports import free_port

ACCESS_KEY, SECRET_KEY = "kcover-access", "kcover-secret-word"
_COLLECTOR = """
receivers:
  otlp:
    protocols:
      http: {{endpoint: "127.0.0.1:{port}"}}
exporters:
  file: {{path: "{file}", flush_interval: 100ms}}
service:
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
    metrics: {{receivers: [otlp], exporters: [file]}}
"""


@dataclass(frozen=True)
class ObjectStore:
    """A running versitygw; each object is a file below `folder`/BUCKET."""

    url: str
    folder: Path


@dataclass(frozen=True)
class Collector:
    """A running collector, which writes what it receives."""

    url: str
    file: Path

    def received(self, what: str) -> list[dict[str, Any]]:
        """So far; `what`: resourceSpans or resourceMetrics."""
        text = self.file.read_text() if self.file.exists() else ""
        # the last line may be half written
        lines = text.rpartition("\n")[0].splitlines()
        return [found for line in lines for found in json.loads(line).get(what, ())]


def _say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _running(
    command: list[str], environment: dict[str, str], port: int, log: Path
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=output, stderr=output
        )
    try:
        end_s = time.monotonic() + 30.0
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"{command[0]} does not listen: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def object_store(folder: Path, bucket: str, port: int = 0) -> Iterator[ObjectStore]:
    """An S3 server with one bucket, and one account that may do all; built the first time, in minutes."""
    program = build.program(versions.program("versitygw"), _say)
    port = port or free_port()
    (folder / "objects" / bucket).mkdir(parents=True, exist_ok=True)
    account = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(program), "--port", f"127.0.0.1:{port}", "posix", str(folder / "objects")]
    with _running(command, account, port, folder / "versitygw.log"):
        yield ObjectStore(f"http://127.0.0.1:{port}", folder / "objects")


@contextmanager
def collector(folder: Path) -> Iterator[Collector]:
    """A collector that takes OTLP over HTTP; built the first time, in minutes."""
    program = build.program(versions.program("otelcol"), _say)
    port, file = free_port(), folder / "received.json"
    config = folder / "collector.yaml"
    config.write_text(_COLLECTOR.format(port=port, file=file))
    with _running([str(program), f"--config=file:{config}"], {}, port, folder / "otelcol.log"):
        yield Collector(f"http://127.0.0.1:{port}", file)
