"""Tenants against the controller: what they write must neither move it against others nor keep it from helping them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testbed.attacks.hostile import ARMED, FINALIZER, JOB_NAME, SLEEPS, claims, job, pod, policy
from testbed.attacks.stage import JOB, OVER, Stage, Tenant, arrive, faults_of
from testbed.driver.cluster import Cluster, Namespace, made, titled, until
from testbed.driver.kinds import rank_pods
from testbed.driver.restarts import hang, incidents, until_reported, ways
from testbed.driver.victims import has_trained, observed
from tests.attack.conftest import Peace

pytestmark = pytest.mark.timeout(900, func_only=True)
CRASHES = "import sys, time; time.sleep(3); sys.exit(1)"


@contextmanager
def finalizers_removed(namespace: Namespace) -> Iterator[None]:
    """The namespace could not go with them."""
    try:
        yield
    finally:
        namespace.ctl("delete", "jobs", "--all", "--cascade=orphan")
        for name in namespace.ctl("get", "pods", "--output=name").split():
            patch = '{"metadata": {"finalizers": null}}'
            namespace.cluster.run(
                f"--namespace={namespace.name}", "patch", name, "--type=merge", f"--patch={patch}"
            )


@pytest.fixture
def unarmed(cluster: Cluster) -> Iterator[Namespace]:
    """Another tenant's job, which nothing may restart."""
    with made(titled(cluster, "unarmed")) as mine:
        observed(mine)
        yield mine


def over(namespace: Namespace) -> list[dict[str, Any]]:
    """Incidents about a fault for which nothing more is done."""
    return [entry for entry in faults_of(namespace) if entry["status"].get("phase") in OVER]


def test_a2_a_pod_that_claims_a_foreign_job_arms_nothing(
    peace: Peace, tenant: Tenant, unarmed: Namespace
) -> None:
    (target,) = unarmed.get("jobs", "demo")
    old = {entry["metadata"]["uid"] for entry in unarmed.pods(JOB.selector)}
    tenant.create(policy(), job("mine", CRASHES))
    with finalizers_removed(tenant.namespace):
        until(lambda: incidents(tenant.namespace), "the attacker's gang has an incident")
        until(lambda: has_trained(unarmed), "the unarmed job trains")
        # each is deleted within seconds, because its owner is in another namespace
        for number in range(12):
            false = pod(f"claims-{number}", labels={**ARMED, JOB_NAME: "mine"})
            false["metadata"]["finalizers"] = [FINALIZER]
            false["metadata"]["ownerReferences"] = claims("Job", "mine", target["metadata"]["uid"])
            tenant.create(false)
            time.sleep(0.5)
        hang(rank_pods(unarmed, JOB)[-1])
        incident = until(lambda: over(unarmed), "the hang of the unarmed job was judged")[0]
        assert incident["status"]["phase"] == "Observed", incident["status"]["timeline"]
        peace.assert_kept(15)
        (still,) = unarmed.get("jobs", "demo")
        assert not still["spec"].get("suspend")
        assert {entry["metadata"]["uid"] for entry in unarmed.pods(JOB.selector)} == old
        assert not any(ways(entry) for entry in over(unarmed))
        peace.assert_recovers()


def test_a3_a_finalizer_on_ended_pods_cordons_no_node(peace: Peace, tenant: Tenant) -> None:
    tenant.create(policy(ways=["Replace"], node={"cordon": True, "taint": True}))
    with finalizers_removed(tenant.namespace):
        tenant.create(job("stays", CRASHES, 2, finalizer=True))
        until_reported(tenant.namespace, "finalizer")
        peace.assert_kept(20)
        peace.assert_recovers()


def test_a3_a_program_that_cannot_be_imported_cordons_no_node(peace: Peace, tenant: Tenant) -> None:
    tenant.create(policy(node={"cordon": True, "taint": True}))
    tenant.create(job("broken", "import time; time.sleep(3); import nothing_of_this_name"))

    def failed_again() -> bool:
        """Its log shows the same traceback, which ends its restarts; without the log it is restarted once more."""
        found = [incident.get("status", {}) for incident in incidents(tenant.namespace)]
        restarts = sum(len(item.get("restarts", ())) for item in found)
        return restarts >= 2 or any("a bug of the program" in str(item) for item in found)

    until(failed_again, "it failed twice")
    peace.assert_kept(10)
    peace.assert_recovers()


def test_a10_crashing_toys_of_one_namespace_leave_room_for_others(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    tenant.create(policy(ways=["Replace"]))
    tenant.create(*(job(f"toy-{number}", CRASHES) for number in range(12)))

    def waits() -> bool:
        texts = [
            incident.get("status", {}).get("message", "")
            for incident in incidents(tenant.namespace)
        ]
        return any("restarted in its window" in text for text in texts)

    until(waits, "what the tenant may use of the breaker is used up", 180)
    peace.assert_recovers()
    assert waits(), "the attack lasted"


def test_a16_stray_pods_with_a_jobs_labels_change_nothing_for_it(
    peace: Peace, stage: Stage, tenant: Tenant
) -> None:
    """Here the tenant may write in the victim's namespace: a colleague who debugs."""
    space = stage.victim.namespace
    colleague = arrive(space, tenant.namespace)
    labels = {JOB_NAME: "demo"}
    colleague.create(job("other", SLEEPS, armed=False))
    (other,) = space.get("jobs", "other")
    copy = pod("aaa-debug-copy", labels=labels)
    false = pod("aab-captures", labels={**ARMED, **labels})
    false["metadata"]["ownerReferences"] = claims("Job", "other", other["metadata"]["uid"])
    colleague.create(copy, false)
    try:
        for text in ("aaa-debug-copy", "aab-captures"):
            space.wait(f"pod/{text}", "condition=Ready")
        peace.assert_kept(15)
        peace.assert_recovers()
        (still,) = space.get("jobs", "other")
        assert not still["spec"].get("suspend"), "the job that was pointed at"
    finally:
        gone = (
            "delete",
            "pod,job",
            "aaa-debug-copy",
            "aab-captures",
            "other",
            "--ignore-not-found",
        )
        space.cluster.run(f"--namespace={space.name}", *gone)
        space.cluster.run(f"--namespace={space.name}", "delete", "rolebinding", "tenant")


def test_a17_an_incident_that_is_deleted_in_a_restart_leaves_no_job_suspended(
    peace: Peace, stage: Stage, cluster: Cluster
) -> None:
    """The tenant deletes the incident of its own job, and the controllers go with it."""
    with made(titled(cluster, "deleted")) as space:
        mine = arrive(space)
        mine.create(policy(ways=["Replace"]))
        mine.create(job("demo", CRASHES, 2, finalizer=True))
        with finalizers_removed(space):
            # the finalizers keep the restart from continuing
            suspended = "jsonpath={.spec.suspend}=true"
            space.wait("job/demo", suspended)
            mine.ctl("delete", "incidents", "--all", "--wait=false")
            stage.release.ctl(
                "delete", "pods", "--selector=app.kubernetes.io/component=controller",
                "--grace-period=0", "--force",
            )  # fmt: skip
            space.wait("job/demo", "jsonpath={.spec.suspend}=false")
            until(lambda: not first(space), "the incident is gone")
        stage.release.wait_until_ready()
        peace.assert_recovers()


def first(namespace: Namespace) -> set[str]:
    """Names of incidents that are being deleted."""
    return {
        incident["metadata"]["name"]
        for incident in incidents(namespace)
        if "deletionTimestamp" in incident["metadata"]
    }
