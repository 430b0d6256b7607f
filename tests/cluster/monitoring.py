"""A real Prometheus and a real Alertmanager beside the cluster, with the chart's own rules.

They run in the network of a node of the test bed, from where pods can be reached.
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

from testbed.driver.cluster import ROOT, Cluster

RULES = ROOT / "charts/kcover-ebpf/files/alerts.yaml"
NODE = "node1"
PROMETHEUS, ALERTMANAGER = "127.0.0.1:19090", "127.0.0.1:19093"
INTERVAL = "2s"
COMPONENTS = ("agent", "controller")


@dataclass(frozen=True)
class Monitoring:
    """Both, running; questions go through the node's network."""

    cluster: Cluster
    folder: Path

    def find(self, namespace: str) -> None:
        """Scrape the pods that are there now, under the names that the PodMonitor gives them."""
        for component in COMPONENTS:
            selector = f"--selector=app.kubernetes.io/component={component}"
            pods = self.cluster.get("pods", f"--namespace={namespace}", selector)
            groups = [
                {
                    "targets": [f"{pod['status']['podIP']}:{_port(pod)}"],
                    "labels": {"node": pod["spec"]["nodeName"]},
                }
                for pod in pods
                if "deletionTimestamp" not in pod["metadata"] and "podIP" in pod["status"]
            ]
            part = self.folder / "part"
            part.write_text(json.dumps(groups))
            part.rename(_targets(self.folder, component))

    def _get(self, address: str, path: str) -> Any:
        done = subprocess.run(
            [*_on_node(self.cluster), "curl", "-s", "--max-time", "20", f"http://{address}{path}"],
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
        labels = [item["labels"] for item in known or []]
        return [label for label in labels if label["alertname"] == alert]

    def wait(self, what: Callable[[], object], timeout_s: float) -> float:
        """Ask until it is true; seconds that took. Raises AssertionError when it never was."""
        started = time.monotonic()
        while not what():
            assert time.monotonic() - started < timeout_s, f"not within {timeout_s:.0f} s"
            time.sleep(0.5)
        return time.monotonic() - started


def _port(pod: dict[str, Any]) -> int:
    ports: list[dict[str, Any]] = pod["spec"]["containers"][0]["ports"]
    return next(int(port["containerPort"]) for port in ports if port["name"] == "metrics")


def _on_node(cluster: Cluster) -> list[str]:
    return cluster.testbed("exec", NODE, "--")


def _scrape(component: str, folder: Path) -> dict[str, Any]:
    """The chart's PodMonitor in the words of Prometheus.

    Targets come from a file, because Debian's Prometheus has no Kubernetes discovery.
    """
    return {
        "job_name": f"kcover-{component}",
        "honor_labels": True,
        "file_sd_configs": [{"files": [str(_targets(folder, component))]}],
    }


def _targets(folder: Path, component: str) -> Path:
    return folder / f"{component}.json"


def _configure(folder: Path) -> None:
    prometheus = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(RULES)],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [ALERTMANAGER]}]}],
        },
        "scrape_configs": [_scrape(component, folder) for component in COMPONENTS],
    }
    (folder / "prometheus.yml").write_text(json.dumps(prometheus))
    route = {"receiver": "nowhere", "group_wait": "0s"}
    alertmanager = {"route": route, "receivers": [{"name": "nowhere"}]}
    (folder / "alertmanager.yml").write_text(json.dumps(alertmanager))


@contextmanager
def running(folder: Path, cluster: Cluster) -> Iterator[Monitoring]:
    """Start both with their data in `folder`; nothing is scraped before `Monitoring.find`."""
    _configure(folder)
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
                full = [*_on_node(cluster), *command]
                processes.append(subprocess.Popen(full, stdout=log, stderr=log))
        monitoring = Monitoring(cluster, folder)
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
