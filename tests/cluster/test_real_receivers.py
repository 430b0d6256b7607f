"""What leaves the cluster, received by real servers: archives by a store of S3's kind, traces by a collector.

No cluster is needed: the servers, the uploader and the controller's senders are real, the node is a folder.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from kcover_ebpf.archive.incident_archive import Archive, packed
from kcover_ebpf.cli import main
from kcover_ebpf.errors import StoreError
from kcover_ebpf.notify.message import message_of
from kcover_ebpf.notify.metrics_pusher import MetricsPusher
from kcover_ebpf.notify.sending import Sender
from kcover_ebpf.notify.target import MessageForm, NotifyTarget
from kcover_ebpf.output.bundles import bundle_name, write_bundle
from kcover_ebpf.stores.s3_store import S3Store
from kcover_ebpf.stores.sigv4 import Credentials
from kcover_ebpf.stores.store import part_key, store_address
from testbed.driver.cluster import until
from testbed.driver.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    ObjectStore,
    collector,
    object_store,
)
from testbed.ports import free_port
from tests.cluster.stub_agents import COMMAND
from tests.unit.support import incident_archives as build

pytestmark = [pytest.mark.needs("go"), pytest.mark.timeout(1200, func_only=True)]
NAMES = [bundle_name(build.BEGIN_S + number, "train-x7k2") for number in range(2)]
WHOLE = build.archive()


def keys(store: ObjectStore) -> set[str]:
    folder = store.folder / "incidents/prod"
    return {str(path.relative_to(folder)) for path in folder.rglob("*.tar.gz")}


def is_there(store: ObjectStore, key: str) -> bool:
    return key in keys(store)


def secrets(folder: Path, secret_key: str = SECRET_KEY) -> Path:
    made = folder / "secrets"
    made.mkdir(exist_ok=True)
    (made / "accessKey").write_text(ACCESS_KEY)
    (made / "secretKey").write_text(secret_key)
    return made


@contextmanager
def uploading(node: str, bundles: Path, url: str, credentials: Path, log: Path) -> Iterator[None]:
    """The uploader of one node, as the chart's DaemonSet runs it: without a capability."""
    command = [
        "setpriv",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        COMMAND,
        "upload",
    ]
    command += ["--from", str(bundles), "--to", "s3://incidents/prod", "--node", node]
    command += ["--endpoint", url, "--credentials", str(credentials)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(15.0) == 0, log.read_text()
    assert SECRET_KEY not in log.read_text()


def test_the_parts_of_two_nodes_are_read_back_after_the_nodes_are_gone(tmp_path: Path) -> None:
    nodes = [tmp_path / part.node for part in WHOLE.parts]
    with object_store(tmp_path, "incidents") as store:
        for folder, part, name in zip(nodes, WHOLE.parts, NAMES, strict=True):
            write_bundle(folder, name, packed(Archive(WHOLE.job, WHOLE.name, parts=(part,))))
            with uploading(part.node, folder, store.url, secrets(tmp_path), tmp_path / "log"):
                key = part_key("research", part.node, name)
                until(partial(is_there, store, key), f"{key} is in the store")
            shutil.rmtree(folder)
        address = store_address("s3://incidents/prod", store.url)
        reader = S3Store(address, lambda: Credentials(ACCESS_KEY, SECRET_KEY))
        parts = []
        for part, name in zip(WHOLE.parts, NAMES, strict=True):
            content = reader.get(part_key("research", part.node, name), 1 << 20)
            assert content is not None
            path = tmp_path / f"{part.node}.tar.gz"
            path.write_bytes(content)
            parts.append(str(path))
            stored = store.folder / "incidents/prod" / part_key("research", part.node, name)
            assert hashlib.sha256(stored.read_bytes()).digest() == hashlib.sha256(content).digest()
        assert reader.get("research/nothing/a.tar.gz", 10) is None
    page = tmp_path / "page.html"
    assert main(["report", *parts, "-o", str(page)]) == 0
    assert all(part.node in page.read_text() for part in WHOLE.parts)


def test_what_is_in_the_store_is_not_replaced_and_wrong_credentials_are_an_error(
    tmp_path: Path,
) -> None:
    with object_store(tmp_path, "incidents") as store:
        address = store_address("s3://incidents/prod", store.url)
        good = S3Store(address, lambda: Credentials(ACCESS_KEY, SECRET_KEY))
        assert good.put("ml/a b+ü/n.tar.gz", b"first")
        assert not good.put("ml/a b+ü/n.tar.gz", b"second")
        assert good.get("ml/a b+ü/n.tar.gz", 10) == b"first"
        wrong = S3Store(address, lambda: Credentials(ACCESS_KEY, "another-word"))
        with pytest.raises(StoreError, match="403"):
            wrong.put("ml/b", b"x")
        nowhere = S3Store(
            store_address("s3://nowhere", store.url), lambda: Credentials(ACCESS_KEY, SECRET_KEY)
        )
        with pytest.raises(StoreError, match="404"):
            nowhere.put("ml/b", b"x")


def test_a_store_that_comes_late_gets_all_parts(tmp_path: Path) -> None:
    folder, port = tmp_path / "bundles", free_port()
    part = WHOLE.parts[0]
    for name in NAMES:
        write_bundle(folder, name, packed(Archive(WHOLE.job, WHOLE.name, parts=(part,))))
    credentials = secrets(tmp_path, "not-yet-right")
    url, log = f"http://127.0.0.1:{port}", tmp_path / "log"
    with uploading(part.node, folder, url, credentials, log):
        until(lambda: "does not answer" in log.read_text(), "it has tried")
        with object_store(tmp_path, "incidents", port) as store:
            until(lambda: "answered 403" in log.read_text(), "it was refused")
            secrets(tmp_path)
            until(lambda: len(keys(store)) == 2, "both parts are in the store")


def test_a_collector_receives_an_incident_as_a_trace_and_the_metrics(tmp_path: Path) -> None:
    incident = WHOLE.incident
    assert incident is not None
    assert incident.status is not None
    (tmp_path / "token").write_text("abc")
    registry = CollectorRegistry()
    Counter("kcover_time_lost_seconds", "Lost.", ["phase"], registry=registry).labels("detect").inc(
        3
    )
    sender = Sender(tmp_path)
    with collector(tmp_path) as found:
        target = NotifyTarget("t", MessageForm.OPEN_TELEMETRY, f"{found.url}/", key="token")
        assert sender.send(target, message_of(incident, incident.status))
        MetricsPusher(target, registry.collect, sender, "controller-0").push()
        until(lambda: found.received("resourceMetrics"), "metrics are received")
        until(lambda: found.received("resourceSpans"), "a trace is received")
        (resource,) = found.received("resourceSpans")
        (metrics,) = found.received("resourceMetrics")
    spans = {span["name"]: span for span in resource["scopeSpans"][0]["spans"]}
    whole = spans["incident HUNG storage"]
    for name in ("detect", "decide", "shut down", "first progress"):
        assert spans[name]["parentSpanId"] == whole["spanId"]
        assert spans[name]["traceId"] == whole["traceId"]
    assert {event["name"] for event in spans["detect"]["events"]} == {"evidence", "wait"}
    assert int(whole["startTimeUnixNano"]) == build.BEGIN_S * 1e9
    (metric,) = metrics["scopeMetrics"][0]["metrics"]
    assert metric["name"] == "kcover_time_lost_seconds"
    assert metric["sum"]["dataPoints"][0]["asDouble"] == 3
