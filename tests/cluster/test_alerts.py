"""A job hangs on a real cluster: Prometheus fires, Alertmanager gets it, and it resolves.

The job is not armed, so nothing ends it: the alert must last as long as the hang. Then it is armed and
hurt again, and restarted. Every query of every dashboard is asked during both.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator

import pytest

from kcover_ebpf.api.rfc3339 import from_text
from testbed.driver.cluster import ROOT, Namespace
from testbed.driver.installed import NAMESPACE, Release
from testbed.driver.restarts import policy, wait_for_phase
from testbed.driver.victims import has_trained, observed, ranks
from tests.cluster import monitoring
from tests.cluster.monitoring import Monitoring

DASHBOARDS = ROOT / "charts/kcover-ebpf/files/dashboards"
# No answer here, and why.
NEEDS_HARDWARE = {
    "kcover_device_fault": "no device that announces a fault",
    "kcover_gpu_": "no GPU",
    "kcover_xid_total": "no GPU",
    "kcover_pcie_aer_total": "no PCI Express error reporting in this kernel",
    "kcover_port_down_total": "no RDMA port",
}


@pytest.fixture(scope="module")
def watching(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    folder = tmp_path_factory.mktemp("monitoring")
    with monitoring.running(folder, release.cluster) as watching:
        watching.find(NAMESPACE)
        yield watching


def queries(namespace: str) -> set[str]:
    """Every query of every dashboard, as Grafana would send it for this job."""
    replaced = {
        "$__rate_interval": "1m",
        "$namespace": namespace,
        "$training_job": "demo",
        "$node": "node1",
    }
    found = set()
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                text: str = target["expr"]
                for name, value in replaced.items():
                    text = text.replace(name, value)
                found.add(text)
    return found


def silent(watching: Monitoring, asked: set[str]) -> set[str]:
    """Those of the queries that answer nothing now."""
    return {text for text in asked if not watching.query(text)}


@pytest.mark.timeout(1800, func_only=True)
def test_a_hang_fires_reaches_alertmanager_and_resolves(
    watching: Monitoring, namespace: Namespace
) -> None:
    watching.wait(lambda: watching.query("sum(kcover_leader) == 1"), 120)
    observed(namespace)
    watching.wait(lambda: has_trained(namespace), 240)
    assert watching.firing("KcoverJobHung") == []

    pod, victim = next(iter(ranks(namespace).items()))
    os.kill(victim, signal.SIGSTOP)
    began_s = time.time()
    try:
        watching.wait(lambda: watching.firing("KcoverJobHung"), 360)
        fired_s = time.time()
        (incident,) = namespace.items("incidents")
        decided_s = from_text(incident["status"]["timeline"][0]["time"])
        print(
            f"stop to verdict {decided_s - began_s:.1f} s, verdict to alert {fired_s - decided_s:.1f} s"
        )
        (alert,) = watching.firing("KcoverJobHung")
        reported = (alert["namespace"], alert["cause"], alert["pod"])
        assert reported == (namespace.name, "stopped", pod)
        unanswered = silent(watching, queries(namespace.name))
    finally:
        os.kill(victim, signal.SIGCONT)
    ended_s = time.monotonic()
    watching.wait(lambda: not watching.firing("KcoverJobHung"), 600)
    print(f"SIGCONT to resolved {time.monotonic() - ended_s:.1f} s")

    # Restarted now: what recoveries, orders and lost time show.
    policy(namespace)
    namespace.ctl("label", "jobs.batch/demo", "kcover.io/cascading-recovery=true")
    watching.wait(lambda: has_trained(namespace), 240)
    os.kill(next(iter(ranks(namespace).values())), signal.SIGSTOP)
    wait_for_phase(namespace, ("Recovered",), 2, 300)
    deadline = time.monotonic() + 60
    while (still := silent(watching, unanswered)) and time.monotonic() < deadline:
        unanswered = still
        time.sleep(2)
    reasons = {text: name for text in still for name in NEEDS_HARDWARE if name in text}
    assert still == set(reasons)
    for item, name in sorted(reasons.items()):
        print(f"empty: {item}: {NEEDS_HARDWARE[name]}")


def test_the_agents_see_everything_of_the_base_layer(watching: Monitoring) -> None:
    base = 'kcover_probe_attached{family=~"threads|sockets|lifecycle"}'
    assert watching.query(base)
    assert watching.query(f"{base} == 0") == []
    assert watching.query('sum(up{job="kcover-agent"})')[0]["value"][1] != "0"


def test_each_probe_is_attached_or_says_why_not(watching: Monitoring) -> None:
    why_not = watching.query("kcover_probe_refused")
    assert {entry["metric"]["reason"] for entry in why_not} <= {
        "no_hook", "no_driver", "no_library", "refused"
    }  # fmt: skip
    unexplained = "kcover_probe_attached == 0 unless on (node, family, probe) kcover_probe_refused"
    assert watching.query("kcover_probe_attached == 0")
    assert watching.query(unexplained) == []


@pytest.mark.timeout(600, func_only=True)
def test_the_unprivileged_profile_loses_no_probe_of_the_base_layer(
    release: Release, watching: Monitoring
) -> None:
    release.upgrade("--set", "agent.privileged=false")
    watching.find(NAMESPACE)
    base = 'kcover_probe_attached{family=~"threads|sockets|lifecycle"}'
    watching.wait(lambda: watching.query(f"{base} == 1"), 60)
    assert watching.query(f"{base} == 0") == []


def test_nothing_was_asked_that_is_not_allowed(release: Release) -> None:
    """A right that a program lacks shows as 403 in its log."""
    for component in ("agent", "controller"):
        selector = f"--selector=app.kubernetes.io/component={component}"
        log = release.ctl("logs", selector, "--tail=-1", "--prefix")
        refused = [line for line in log.splitlines() if re.search("forbidden", line, re.IGNORECASE)]
        # what is published about a namespace that is just being deleted has no place any more
        assert [line for line in refused if "being terminated" not in line] == []
