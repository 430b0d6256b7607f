"""The chart's options that keep evidence in a claim and serve the page of the controller, as a user sets them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kcover_ebpf.archive.incident_archive import unpacked
from kcover_ebpf.output.archives import read_files
from testbed.driver.cluster import JOBS, Cluster, Namespace, until
from testbed.driver.installed import NAMESPACE, installed
from testbed.driver.kinds import SPREAD, replaced, sized
from testbed.driver.restarts import policy, wait_for_phase
from tests.cluster.spread_job import SELECTOR, last_rank

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(900, func_only=True)]

VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: kept-evidence}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {{path: {folder}, type: Directory}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: evidence, namespace: {namespace}}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: kept-evidence
  resources: {{requests: {{storage: 1Gi}}}}
"""


def test_a_claim_keeps_the_parts_of_all_nodes_and_the_page_shows_the_job(
    cluster: Cluster, image: str, namespace: Namespace, tmp_path: Path
) -> None:
    claimed = VOLUME.format(folder=tmp_path, namespace=NAMESPACE)
    values = ("archiveStore.claim=evidence", "controller.page.enabled=true")
    try:
        with installed(cluster, image, *values) as release:
            cluster.ctl("apply", "--filename=-", stdin=claimed)
            release.wait_until_ready()
            policy(namespace, action="Snapshot")
            text = sized((JOBS / "job.yaml").read_text(), 4)
            namespace.apply(replaced(text, {"restartPolicy: Never": SPREAD}))
            namespace.wait_for_steps(SELECTOR, 4, 5, 300)
            pod, pid = last_rank(namespace)
            os.kill(pid, signal.SIGSTOP)
            incident = wait_for_phase(namespace, ("Observed",))
            name = incident["metadata"]["name"]
            folder = tmp_path / namespace.name / name
            until(
                lambda: len(list(folder.glob("*.tar.gz"))) == 2,
                "the parts of both nodes are in the volume",
            )
            page = f"/api/v1/namespaces/{NAMESPACE}/services/kcover-ebpf-page:page/proxy/"
            html = cluster.ctl("get", f"--raw={page}")
            assert f"{namespace.name}/demo" in html
            assert pod.name in html
            assert f"kubectl kcover explain {name} -n {namespace.name}" in html
            assert "<script" not in html
    finally:
        cluster.run("delete", "--filename=-", "--wait=false", stdin=claimed)
    # the release and its agents are gone
    archives = [unpacked(read_files(path), path.name) for path in folder.glob("*.tar.gz")]
    kept = {part.node for archive in archives for part in archive.parts}
    assert kept == {node["metadata"]["name"] for node in cluster.get("nodes")}
