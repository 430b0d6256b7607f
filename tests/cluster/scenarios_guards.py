"""Scenarios for test_cascade.py: jobs that are not restarted, or not yet, and what a person does about it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from testbed.driver.cluster import Namespace
from testbed.driver.restarts import incidents, policy, recover, running, wait_for_phase, ways
from tests.cluster.crowd import Book, Scenario
from tests.cluster.faked_job import (
    break_rank,
    check_acted_once,
    faked,
    started,
    uids,
)

LABEL = "kcover.io/cascading-recovery"
BOOK = Book()


def plugin(namespace: Namespace, *words: str) -> str:
    """What `kubectl kcover` prints."""
    command = [str(Path(sys.executable).with_name("kubectl-kcover")), *words]
    command += [f"--namespace={namespace.name}", f"--kubeconfig={namespace.cluster.kubeconfig}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def check_left_alone(namespace: Namespace, old: set[str]) -> None:
    """For a while, and with all its pods."""
    time.sleep(3)
    assert uids(namespace) == old
    assert ways(incidents(namespace)[0]) == []


def refused(spec: dict[str, object], phase: str, words: str, namespace: Namespace) -> None:
    """A policy with which the job is only observed."""
    policy(namespace, **spec)
    started(namespace)
    if not spec:
        # the API server gives a Job without labels those of its template
        namespace.ctl("label", "pods,jobs", "--all", f"{LABEL}-")
    old = uids(namespace)
    with faked(namespace) as fake:
        break_rank(namespace, fake)
        incident = wait_for_phase(namespace, (phase,))
        assert words in incident["status"]["message"]
        check_left_alone(namespace, old)


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "a_job_that_is_not_armed": ({}, "Observed", "not armed"),
    "a_policy_that_observes": ({"action": "Observe"}, "Observed", "allows Observe only"),
    "a_budget_that_is_spent": ({"restarts": {"max": 0}}, "Refused", "budget"),
}
for title, reported in REFUSED.items():
    BOOK[title] = Scenario(partial(refused, *reported))


@BOOK.scenario(brings_controller=True)
def a_second_job_waits_for_the_breaker(namespace: Namespace) -> None:
    policy(namespace, ways=["Replace"])
    jobs = ("demo", "beside")
    for job in jobs:
        started(namespace, job)
    old = {job: uids(namespace, job) for job in jobs}
    limits = ("--breaker-jobs=1", "--breaker-window=20s")
    with (
        tempfile.TemporaryDirectory() as folder,
        running(namespace, Path(folder) / "log", options=limits),
        faked(namespace) as one,
        faked(namespace, "beside") as other,
    ):
        break_rank(namespace, one)
        first = wait_for_phase(namespace, ("Recovering",))
        one.fault = None
        break_rank(namespace, other, "beside")
        second = wait_for_phase(namespace, ("Decided",), 2)
        # it counts the jobs of the whole cluster, those of other scenarios too
        assert "jobs restarted in its window" in second["status"]["message"]
        assert first["spec"]["job"]["name"] == "demo"
        assert uids(namespace, "beside") == old["beside"]
        recover(namespace, other, 2)
    assert [ways(incident) for incident in incidents(namespace)] == [["Replace"], ["Replace"]]
    assert not uids(namespace, "beside") & old["beside"]


@BOOK.scenario()
def a_restart_that_a_person_approves(namespace: Namespace) -> None:
    policy(namespace, approval="Manual", ways=["Replace"])
    started(namespace)
    old = uids(namespace)
    with faked(namespace) as fake:
        break_rank(namespace, fake)
        name = wait_for_phase(namespace, ("Decided",))["metadata"]["name"]
        check_left_alone(namespace, old)
        assert f"kubectl kcover approve {name}" in plugin(namespace, "explain", name)
        plugin(namespace, "approve", name)
        recover(namespace, fake)
    check_acted_once(namespace, old)
    (line,) = [text for text in plugin(namespace, "list").splitlines() if name in text]
    assert line.split()[:3] == ["demo", "Job", "HUNG"]
    assert "Recovered" in line


@BOOK.scenario()
def a_dry_run_that_a_person_ends(namespace: Namespace) -> None:
    policy(namespace, ways=["Replace"])
    plugin(namespace, "dry-run", "p", "on")
    started(namespace)
    old = uids(namespace)
    with faked(namespace) as fake:
        break_rank(namespace, fake)
        incident = wait_for_phase(namespace, ("Observed",))
        assert "dry run: would restart it (Replace)" in incident["status"]["message"]
        check_left_alone(namespace, old)
        plugin(namespace, "dry-run", "p", "off")
        wait_for_phase(namespace, ("Recovering", "Recovered"))
        recover(namespace, fake)
    check_acted_once(namespace, old)
