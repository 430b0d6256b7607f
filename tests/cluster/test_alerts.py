"""A job hangs on a real cluster: Prometheus fires, Alertmanager is told, and it resolves.

The job is not armed, so nothing ends it: the alert must last as long as the hang. Every query of
every dashboard is asked meanwhile.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import monitoring
from tests.cluster.cluster import ROOT, Cluster, Namespace
from tests.cluster.installed import NAMESPACE, Release, installed, provide_image
from tests.cluster.monitoring import Monitoring

BED = os.environ.get("KCOVER_TESTBED", "default")
FOLDER = ROOT / (".testbed" if BED == "default" else f".testbed-{BED}")
DASHBOARDS = ROOT / "charts/kcover-ebpf/files/dashboards"
JOB = "batch.kubernetes.io/job-name=demo"
# Empty answers are right for these: nothing of the kind has happened.
MAY_BE_EMPTY = re.compile(
    r"xid|aer|port_down|device_fault|orders|records_lost|probe_attached|api_errors|recovery"
    r"|time_lost|ettr|verdicts_total"
)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    helm = str(FOLDER / "bin/helm")
    with installed(cluster, helm, provide_image(BED)) as release:
        yield release


@pytest.fixture(scope="module")
def watching(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitoring]:
    with monitoring.running(tmp_path_factory.mktemp("monitoring"), BED) as watching:
        watching.find(release.cluster, NAMESPACE)
        yield watching


def ranks(namespace: Namespace) -> list[int]:
    """Host pids of the ranks: the test bed shares the machine's pids."""
    uids = [pod["metadata"]["uid"] for pod in namespace.pods(JOB)]
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            cgroup = (folder / "cgroup").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if any(f"pod{uid}" in cgroup for uid in uids) and b"train.py" in command:
            found.append(int(folder.name))
    return sorted(found)


def has_trained(namespace: Namespace) -> bool:
    """Whether every node that reports on the job saw it training: before, silence says nothing."""
    reports = [each["spec"] for each in namespace.get("faultreports.kcover.io")]
    return bool(reports) and all(each.get("trained") for each in reports)


def queries(namespace: str) -> list[str]:
    """Every query of every dashboard, as Grafana would send it for this job."""
    found = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [target["expr"] for target in panel["targets"]]
    replaced = {
        "$__rate_interval": "1m",
        "$namespace": namespace,
        "$training_job": "demo",
        "$node": "node1",
    }
    for name, value in replaced.items():
        found = [each.replace(name, value) for each in found]
    return found


@pytest.mark.timeout(1200)
def test_a_hang_fires_reaches_alertmanager_and_resolves(
    release: Release, watching: Monitoring, namespace: Namespace
) -> None:
    watching.wait(lambda: watching.query("sum(kcover_leader) == 1"), 120)
    job = (ROOT / "tests/cluster/jobs/job.yaml").read_text()
    namespace.apply(job.replace('kcover.io/cascading-recovery: "true"', "team: ml"))
    namespace.wait_for_steps(JOB, 2, 20, 300)
    watching.wait(lambda: has_trained(namespace), 240)
    assert watching.firing("KcoverJobHung") == []

    victim = ranks(namespace)[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        mine = f'{{namespace="{namespace.name}",verdict="HUNG"}}'
        verdict_s = watching.wait(lambda: watching.query(f"kcover_incident_info{mine}"), 300)
        firing_s = watching.wait(lambda: watching.firing("KcoverJobHung"), 60)
        print(
            f"stop to scraped verdict {verdict_s:.1f} s, from there to Alertmanager {firing_s:.1f} s"
        )
        (alert,) = watching.firing("KcoverJobHung")
        assert (alert["namespace"], alert["cause"]) == (namespace.name, "stopped")
        assert alert["pod"].startswith("demo-")
        silent = [
            each
            for each in queries(namespace.name)
            if not watching.query(each) and not MAY_BE_EMPTY.search(each)
        ]
        assert silent == []
    finally:
        os.kill(victim, signal.SIGCONT)
    watching.wait(lambda: not watching.firing("KcoverJobHung"), 600)


def test_the_agents_see_everything_of_the_base_layer(watching: Monitoring) -> None:
    base = 'kcover_probe_attached{family=~"threads|walk|sockets|lifecycle"}'
    assert watching.query(base)
    assert watching.query(f"{base} == 0") == []
    assert watching.query('sum(up{job="kcover-agent"})')[0]["value"][1] != "0"


@pytest.mark.timeout(600)
def test_the_unprivileged_profile_sees_the_same_base_layer(
    release: Release, watching: Monitoring
) -> None:
    release.upgrade("--set", "agent.privileged=false")
    text = release.ctl("get", "daemonset", "kcover-ebpf-agent", "--output=json")
    container = json.loads(text)["spec"]["template"]["spec"]["containers"][0]
    assert container["securityContext"]["privileged"] is False
    watching.find(release.cluster, NAMESPACE)
    base = 'kcover_probe_attached{family=~"threads|walk|sockets|lifecycle"}'
    watching.wait(lambda: watching.query(f"{base} == 1"), 60)
    assert watching.query(f"{base} == 0") == []


def test_nothing_was_asked_that_is_not_allowed(release: Release) -> None:
    """A right that a program lacks shows as 403 in its log."""
    for component in ("agent", "controller"):
        selector = f"--selector=app.kubernetes.io/component={component}"
        log = release.ctl("logs", selector, "--tail=-1", "--prefix")
        assert "forbidden" not in log.lower()
