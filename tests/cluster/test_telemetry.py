"""GPU series of a real agent about pods of a real cluster, joined with dcgm-exporter's by a real Prometheus.

The library is a stub without a GPU behind it, and the page of dcgm-exporter is served as that one writes it; the
agent, which runs on the host, sees a loaded driver. NVML lists the process of a real pod.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from testbed.driver import nvml_stub
from testbed.driver.cluster import ROOT, Cluster, Namespace, home, until
from testbed.driver.victims import JOB, observed, ranks
from testbed.ports import free_port
from tests.unit.support.dcgm_pages import page

pytestmark = [
    pytest.mark.needs("root", "bpf", "gcc", "prometheus"),
    pytest.mark.timeout(900, func_only=True),
]
RELEASE = "app.kubernetes.io/name=kcover-ebpf"
UUID = "GPU-7c0e-0"
# of the agent alone: a mount that no other process sees
WITH_DRIVER = 'mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia && exec "$@"'


class FakeDcgmPage(BaseHTTPRequestHandler):
    """dcgm-exporter's, which knows another pod's name for the GPU: it is not asked for it here."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page(UUID).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def exporter() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), FakeDcgmPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def agent(cluster: Cluster, node: str, folder: Path, script: Path, *options: str) -> Iterator[int]:
    """The agent of a node with two GPUs; the value is the port of its metrics."""
    port = free_port()
    command = [
        *("unshare", "--mount", "sh", "-ec", WITH_DRIVER, "sh"),
        *(str(Path(sys.executable).with_name("kcover-ebpf")), "agent", f"--node={node}"),
        *(f"--state-dir={folder / 'state'}", f"--namespace={home(cluster)}"),
        *(f"--kubeconfig={cluster.kubeconfig}", f"--metrics=127.0.0.1:{port}"),
        *("--telemetry-every=1s", "--inspect-every=0s", *options),
    ]
    environment = os.environ | nvml_stub.environ(nvml_stub.build(folder), script)
    with open(folder / "agent.log", "wb") as log:
        process = subprocess.Popen(command, stderr=log, cwd=ROOT, env=environment)
    try:
        yield port
    finally:
        process.kill()
        process.wait()
        print((folder / "agent.log").read_text()[-2000:])


@contextmanager
def prometheus(folder: Path, **targets: int) -> Iterator[int]:
    """It scrapes these ports every second; the value is its own."""
    port = free_port()
    scrapes = [
        {
            "job_name": name,
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{at}"]}],
        }
        for name, at in targets.items()
    ]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    with open(folder / "prometheus.log", "wb") as log:
        address = f"--web.listen-address=127.0.0.1:{port}"
        process = subprocess.Popen([*command, address], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def ask(port: int, expression: str) -> list[dict[str, Any]]:
    """The answer to a PromQL expression; empty while it is not up."""
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urlencode({"query": expression})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return found


def training(namespace: Namespace) -> tuple[str, int, str]:
    """A pod that trains, its rank's process, and its node."""
    cluster = namespace.cluster
    release = cluster.get("daemonsets", "--all-namespaces", f"--selector={RELEASE}")
    assert not release, "uninstall the release of kcover-ebpf first: helm uninstall"
    cluster.ctl("apply", f"--filename={ROOT / 'charts/kcover-ebpf/crds'}")
    observed(namespace)
    name, pid = min(ranks(namespace).items())
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in namespace.pods(JOB)}
    return name, pid, nodes[name]


def test_series_of_gpus_and_pods_join_those_of_dcgm_exporter(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    name, pid, node = training(namespace)
    script = tmp_path / "script"
    busy = f"process 0 {pid}\nprocess_mib 0 4096\nutilization 0 60\nmemory_mib 0 4096\n"
    script.write_text(busy)
    with (
        exporter() as theirs,
        agent(cluster, node, tmp_path, script) as ours,
        prometheus(tmp_path, kcover=ours, dcgm=theirs) as port,
    ):
        both = "kcover_gpu_utilization_ratio * on (UUID, pci_bus_id, gpu) DCGM_FI_DEV_GPU_TEMP"
        (joined,) = until(lambda: ask(port, both), "both forms of one GPU")
        assert joined["metric"]["UUID"] == UUID
        assert float(joined["value"][1]) == pytest.approx(0.60 * 61)
        of_pod = "DCGM_FI_DEV_GPU_TEMP * on (UUID) group_right kcover_gpu_pod"
        (theirs_of_pod,) = until(lambda: ask(port, of_pod), "their temperature by pod")
        labels = theirs_of_pod["metric"]
        assert (labels["pod"], labels["namespace"]) == (name, namespace.name)
        assert labels["pci_bus_id"] == "00000000:5D:00.0"
        (memory,) = ask(port, f'kcover_gpu_pod_memory_used_bytes{{pod="{name}"}}')
        assert float(memory["value"][1]) == 4096 << 20
        use = 'kcover_gpu_use{{use="{}"}} * on (UUID) group_right kcover_gpu_pod == 1'
        until(lambda: ask(port, use.format("working")), "its pod works")
        script.write_text(busy.replace("utilization 0 60", "utilization 0 0"))
        (held,) = until(lambda: ask(port, use.format("memory_held")), "its pod keeps memory")
        assert held["metric"]["pod"] == name
        assert ask(port, "kcover_gpu_unanswered == 1") == []
        script.write_text(busy + "utilization 0 hang\n")
        stuck = until(lambda: ask(port, "kcover_gpu_unanswered == 1"), "one GPU hangs")
        assert [entry["metric"]["gpu"] for entry in stuck] == ["0"]
        (other,) = ask(port, 'kcover_gpu_utilization_ratio{gpu="1"}')
        assert other["value"][1] == "0", "the other one is still read"
