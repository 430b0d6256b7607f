"""Metrics of GPUs and their pods; a real Prometheus scrapes them beside dcgm-exporter's, and joins both."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kcover_ebpf.agent.gpu_metrics import GpuMetrics
from kcover_ebpf.agent.metrics import AgentMetrics
from kcover_ebpf.agent.node_health.gpu_pods import GpuPod, GpuPods
from kcover_ebpf.agent.outputs import NodeOutputs
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.devices.telemetry.reading import GpuProcess, GpuReading
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.devices.telemetry.watch import Telemetry
from kcover_ebpf.facts.devices import GpuUse
from kcover_ebpf.output.metrics import MetricsServer
from testbed.ports import free_port
from tests.unit.support.dcgm_pages import OWN, page
from tests.unit.support.registry_pods import heard

READING = GpuReading(
    gpu="0",
    uuid=OWN,
    pci_bus_id="00000000:5D:00.0",
    boottime_ns=1,
    utilization=0.97,
    power_w=421.5,
    throttle=0x44,
    ecc_uncorrected_count=2,
    nvlink_sent_bytes=3_000_000_000_000,
)
UID = "0c6a3f52-1111-4222-8333-444455556666"
GROUP = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope\n"


def pods(uid: str = UID, name: str = "train-0") -> PodRegistry:
    made = {
        "metadata": {"name": name, "namespace": "team", "uid": uid},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    return heard(made)


def metrics(*states: GpuState, gpu_pods: tuple[GpuPod, ...] = ()) -> CollectorRegistry:
    registry, made = CollectorRegistry(), GpuMetrics()
    registry.register(made)
    made.latest = lambda: Telemetry(states, "", time.monotonic(), 1.5)
    made.pods = gpu_pods
    return registry


def lines(registry: CollectorRegistry, name: str) -> list[str]:
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if line.startswith(name)]


LABELS = 'UUID="GPU-7c0e-0",gpu="0",pci_bus_id="00000000:5D:00.0"'


def test_gpu_metrics__series_have_the_labels_of_dcgm_exporter() -> None:
    registry = metrics(GpuState(READING, GpuUse.WORKING, 1))
    assert lines(registry, "kcover_gpu_utilization_ratio") == [
        f"kcover_gpu_utilization_ratio{{{LABELS}}} 0.97"
    ]
    slowed = [line for line in lines(registry, "kcover_gpu_throttled") if line.endswith(" 1.0")]
    assert [line.split('reason="')[1].split('"')[0] for line in slowed] == [
        "power_cap",
        "hw_thermal",
    ]
    used = [line for line in lines(registry, "kcover_gpu_use") if line.endswith(" 1.0")]
    assert len(used) == 1
    assert 'use="working"' in used[0]
    moved = lines(registry, "kcover_gpu_link_bytes_total")
    assert len(moved) == 1, "what is not observed has no series"
    assert 'link="nvlink"' in moved[0]
    assert float(moved[0].split()[-1]) == 3e12
    assert lines(registry, "kcover_gpu_telemetry_cpu") == [
        "kcover_gpu_telemetry_cpu_seconds_total 1.5"
    ]


def test_gpu_metrics__without_telemetry_there_is_no_gpu() -> None:
    registry = CollectorRegistry()
    registry.register(GpuMetrics())
    assert lines(registry, "kcover_gpu") == [
        "kcover_gpu_telemetry_age_seconds -1.0",
        "kcover_gpu_telemetry_cpu_seconds_total 0.0",
    ]


def test_gpu_pods__a_process_of_any_pod_of_the_node_belongs_to_its_pod(tmp_path: Path) -> None:
    for pid, text in ((31, GROUP), (32, GROUP), (33, "0::/system.slice/x.service\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
    processes = tuple(GpuProcess(pid, size) for pid, size in ((31, 100), (32, 7), (33, 1), (34, 1)))
    gpu = GpuReading("0", OWN, "00000000:5D:00.0", processes=processes)
    (found,) = GpuPods(pods(), tmp_path).of([gpu], {})
    assert (found.pod.namespace, found.pod.name, found.memory_bytes) == ("team", "train-0", 107)


def test_gpu_pods__a_pod_uses_the_gpus_whose_files_it_has_open(tmp_path: Path) -> None:
    other = GpuReading("1", "GPU-1", "00000000:5E:00.0")
    found = GpuPods(pods(), tmp_path).of([READING, other], {UID: ("0000:5d:00.0", "0000:01:00.0")})
    assert [(gpu_pod.gpu.gpu, gpu_pod.pod.name, gpu_pod.memory_bytes) for gpu_pod in found] == [
        ("0", "train-0", None)
    ]
    assert GpuPods(pods(), tmp_path).of([READING], {"unheard of": ("0000:5d:00.0",)}) == ()


def test_gpu_pods__a_pod_that_the_exporter_names(tmp_path: Path) -> None:
    gpu = GpuReading("0", OWN, "00000000:5D:00.0", namespace="team", pod="train-0")
    assert [gpu_pod.pod.uid for gpu_pod in GpuPods(pods(), tmp_path).of([gpu], {})] == [UID]
    assert GpuPods(pods(name="other"), tmp_path).of([gpu], {}) == ()


class FakeExporterPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page().encode())

    def log_message(self, *_: object) -> None:
        pass


def ask(port: int, expression: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urlencode({"query": expression})
    with urllib.request.urlopen(url, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


@pytest.mark.needs("prometheus")
def test_gpu_metrics__prometheus_joins_them_with_those_of_dcgm_exporter(tmp_path: Path) -> None:
    (pod,) = GpuPods(pods(), tmp_path).of([READING], {UID: ("0000:5d:00.0",)})
    ours, theirs = MetricsServer(("127.0.0.1", 0)), HTTPServer(("127.0.0.1", 0), FakeExporterPage)
    ours.serve(metrics(GpuState(READING, GpuUse.WORKING, 1), gpu_pods=(pod,)))
    threading.Thread(target=theirs.serve_forever, daemon=True).start()
    port = free_port()
    jobs = {"kcover-agent": ours.port, "dcgm-exporter": theirs.server_port}
    scrapes = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}], "honor_labels": True}
        for name, at in jobs.items()
    ]  # fmt: skip
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": scrapes}))
    server = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end_s = time.monotonic() + 90
        by_power = "kcover_gpu_power_watts - on (UUID, pci_bus_id, gpu) DCGM_FI_DEV_POWER_USAGE"
        while True:
            try:
                found = ask(port, by_power)
            except OSError:
                found = []
            if found:
                break
            assert time.monotonic() < end_s, "no joined series"
            time.sleep(0.3)
        assert [(entry["metric"]["UUID"], entry["value"][1]) for entry in found] == [(OWN, "0")]
        of_pod = "kcover_gpu_utilization_ratio * on (UUID) group_right kcover_gpu_pod"
        (joined,) = ask(port, of_pod)
        assert (joined["metric"]["pod"], joined["value"][1]) == ("train-0", "0.97")
        theirs_of_pod = "DCGM_FI_DEV_GPU_TEMP * on (UUID) group_right kcover_gpu_pod"
        (joined,) = ask(port, theirs_of_pod)
        assert (joined["metric"]["namespace"], joined["value"][1]) == ("team", "61")
    finally:
        server.kill()
        server.wait()
        ours.close()
        theirs.shutdown()
        theirs.server_close()


def test_agent_metrics__each_new_reading_reaches_metrics() -> None:
    idle = GpuState(replace(READING, utilization=0.0, processes=()), GpuUse.IDLE, 1)
    telemetry = SimpleNamespace(latest=Telemetry((idle,), "", time.monotonic()))
    builder = SimpleNamespace(devices={UID: ("0000:5d:00.0",)})
    devices = SimpleNamespace(telemetry=telemetry)
    registry, parts = pods(), (SimpleNamespace(version=0), devices, SimpleNamespace())
    outputs = NodeOutputs(builder, registry, *parts)  # type: ignore[arg-type]
    outputs.metrics = AgentMetrics(list, dict)
    outputs._follow_gpus()
    telemetry.latest = Telemetry((idle,), "", time.monotonic())
    outputs._follow_gpus()
    text = generate_latest(outputs.metrics.registry).decode()
    labels = f'UUID="{OWN}",gpu="0",namespace="team",pci_bus_id="00000000:5D:00.0",pod="train-0"'
    assert f"kcover_gpu_pod{{{labels}}} 1.0" in text
