"""Who leads, with the permissions that the chart gives: the lease goes with the pods that held it."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from kcover_ebpf.kube.client import connect
from kcover_ebpf.kube.leader_election import LeaderElector
from tests.chart.release import CONTROLLER as ACCOUNT
from tests.chart.release import Installed, kubeconfig, make_pod


@pytest.mark.timeout(120)
def test_the_lease_belongs_to_the_pod_that_leads_and_is_given_back(
    installed: Installed, tmp_path: Path
) -> None:
    """So nothing is left when both are gone; the cluster's collector removes what has no owner."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{installed.namespace}/leases/{ACCOUNT}"
    for node in ("n1", "n2"):
        pod = make_pod(installed.plane, installed.namespace, node, ACCOUNT)["metadata"]
        token = installed.plane.token(installed.namespace, ACCOUNT, {"metadata": pod})
        session = connect(str(kubeconfig(installed, tmp_path, token)))
        elector = LeaderElector(
            session, installed.namespace, ACCOUNT, pod["name"], time.monotonic, pod["uid"]
        )
        leads = threading.Event()
        elector.start(partial(notify, leads), time.time)
        assert leads.wait(60), "the lease was not given back"
        lease = installed.plane.admin().ask("GET", path).body
        (owner,) = lease["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", pod["name"], pod["uid"])
        assert lease["spec"]["holderIdentity"] == pod["name"]
        elector.stop()
        assert not installed.plane.admin().ask("GET", path).body["spec"].get("holderIdentity")


def notify(event: threading.Event, leads: bool) -> None:
    if leads:
        event.set()
