"""A real Prometheus and a real Alertmanager beside the cluster, with the chart's own rules.

They run in the network of a node of the test bed, from where pods can be reached, and find the
pods through the API server as a PodMonitor would have them do.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.cluster.cluster import ROOT

TESTBED = ROOT / "tools/testbed"
RULES = ROOT / "charts/kcover-ebpf/files/alerts.yaml"
NODE = "node1"
PROMETHEUS, ALERTMANAGER = "127.0.0.1:19090", "127.0.0.1:19093"
INTERVAL = "2s"


@dataclass(frozen=True)
class Monitoring:
    """Both, running; questions go through the node's network."""

    bed: str

    def _get(self, address: str, path: str) -> Any:
        done = subprocess.run(
            [*_on_node(self.bed), "curl", "--silent", "--max-time", "20", f"http://{address}{path}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return json.loads(done.stdout) if done.stdout else {}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The answer to a PromQL expression; raises AssertionError where Prometheus refuses it."""
        answer = self._get(PROMETHEUS, "/api/v1/query?" + urlencode({"query": expression}))
        assert answer.get("status") == "success", f"{expression}: {answer}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self, alert: str) -> list[dict[str, str]]:
        """Labels of the alerts of that name that Alertmanager was sent and that are not resolved."""
        known = self._get(ALERTMANAGER, "/api/v2/alerts?active=true")
        labels = [each["labels"] for each in known or []]
        return [each for each in labels if each["alertname"] == alert]

    def wait(self, what: Callable[[], object], timeout_s: float) -> float:
        """Ask until it is true; seconds that took. Raises AssertionError when it never was."""
        started = time.monotonic()
        while not what():
            assert time.monotonic() - started < timeout_s, f"not within {timeout_s:.0f} s"
            time.sleep(0.5)
        return time.monotonic() - started


def _on_node(bed: str) -> list[str]:
    return [str(TESTBED), "exec", "--name", bed, NODE, "--"]


def _scrape(component: str, kubeconfig: Path, namespace: str) -> dict[str, Any]:
    """The chart's PodMonitor in the words of Prometheus."""
    pod = "__meta_kubernetes_pod"
    label = f"{pod}_label_app_kubernetes_io"
    return {
        "job_name": f"kcover-{component}",
        "honor_labels": True,
        "kubernetes_sd_configs": [
            {
                "role": "pod",
                "kubeconfig_file": str(kubeconfig),
                "namespaces": {"names": [namespace]},
            }
        ],
        "relabel_configs": [
            {"source_labels": [f"{label}_component"], "regex": component, "action": "keep"},
            {"source_labels": [f"{pod}_container_port_name"], "regex": "metrics", "action": "keep"},
            {"source_labels": [f"{pod}_node_name"], "target_label": "node"},
        ],
    }


def _configure(folder: Path, kubeconfig: Path, namespace: str) -> None:
    prometheus = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(RULES)],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}],
        },
        "scrape_configs": [
            _scrape(each, kubeconfig, namespace) for each in ("agent", "controller")
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(prometheus))
    route = {"receiver": "nobody", "group_wait": "0s"}
    alertmanager = {"route": route, "receivers": [{"name": "nobody"}]}
    (folder / "alertmanager.yml").write_text(json.dumps(alertmanager))


@contextmanager
def running(folder: Path, kubeconfig: Path, namespace: str, bed: str) -> Iterator[Monitoring]:
    """Start both with their data in `folder`; `kubeconfig` holds from inside a node."""
    _configure(folder, kubeconfig, namespace)
    commands = [
        ["prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml",
         f"--storage.path={folder}/alertmanager", f"--web.listen-address={ALERTMANAGER}",
         "--cluster.listen-address="],
        ["prometheus", f"--config.file={folder}/prometheus.yml",
         f"--storage.tsdb.path={folder}/prometheus", f"--web.listen-address={PROMETHEUS}"],
    ]  # fmt: skip
    processes = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.log", "wb") as log:
                full = [*_on_node(bed), *command]
                processes.append(subprocess.Popen(full, stdout=log, stderr=log))
        monitoring = Monitoring(bed)
        monitoring.wait(lambda: _is_up(monitoring), 120)
        yield monitoring
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _is_up(monitoring: Monitoring) -> bool:
    try:
        return bool(monitoring.query("vector(1)"))
    except (AssertionError, ValueError):
        return False
