"""The chaos harness: a plan that repeats, and invariants that can be broken."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.chaos.invariants import Fault, Helpers, JobAtEnd, Outcome, Peak, Seen, violations
from bench.chaos.observe import IncidentLog
from bench.chaos.plan import FAULTS, LAST_S, Kind, plan
from kcover_ebpf.kube.reflector import Change, Event
from testbed.driver.cluster import Cluster, Namespace
from testbed.skips import ROOT

STOP = Fault("a", "stop a rank", "demo-1", 1000.0, 1040.0)
REPORTED = Seen("a", "i-1", "HUNG", "demo-1", 999.0, "Recovered")
JOB = JobAtEnd("a", suspended=False, stopped=0, trains=True, starts={0: 2, 1: 2})
STEADY = JobAtEnd("s", suspended=False, stopped=0, trains=True, starts={0: 1, 1: 1})
PEAK = Peak("agent", 7, 120_000_000, 80)
HELPER = Peak("helper", 8, 20_000_000, 320)
HELPERS = Helpers("agent-a", alive=5, ended=0)
GOOD = Outcome([STOP], [REPORTED], [JOB, STEADY], [PEAK, HELPER], helpers=[HELPERS])


def test_plan__a_seed_makes_the_same_plan_again() -> None:
    assert plan(7, 900, 2) == plan(7, 900, 2)
    assert plan(7, 900, 2) != plan(8, 900, 2)


def test_plan__an_hour_has_every_kind_and_ends_in_calm() -> None:
    acts = plan(1, 3600, 2)
    assert {act.kind for act in acts} == set(Kind)
    assert max(act.at_s for act in acts) < 3600 - LAST_S
    assert {act.target for act in acts if act.kind in FAULTS} == {0, 1}


def test_plan__a_run_of_helpers_disturbs_nothing_else() -> None:
    kinds = [act.kind for act in plan(1, 600, 2, helpers=True)]
    assert set(kinds) == {*FAULTS, Kind.KILL_HELPER, Kind.KILL_AGENT}
    assert kinds.count(Kind.KILL_HELPER) > 100


def test_violations__a_good_run_breaks_nothing() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (replace(GOOD, jobs=[replace(JOB, suspended=True), STEADY]), "a is suspended"),
        (replace(GOOD, jobs=[replace(JOB, stopped=2), STEADY]), "2 processes are stopped"),
        (replace(GOOD, jobs=[replace(JOB, trains=False), STEADY]), "a does not train"),
        (replace(GOOD, jobs=[replace(JOB, starts={0: 3, 1: 2}), STEADY]), "rank 0 was started 3"),
        (replace(GOOD, jobs=[JOB, replace(STEADY, starts={0: 1, 1: 2})]), "s: rank 1 was started"),
        (replace(GOOD, incidents=[replace(REPORTED, restarts=2)]), "a: was restarted 2 times, 1"),
        (replace(GOOD, incidents=[]), "was never reported"),
        (replace(GOOD, incidents=[replace(REPORTED, verdict="UNKNOWN")]), "was never reported"),
        (replace(GOOD, incidents=[replace(REPORTED, since_s=900.0)]), "was never reported"),
        (replace(GOOD, incidents=[replace(REPORTED, since_s=1100.0)]), "was never reported"),
        (replace(GOOD, incidents=[REPORTED, replace(REPORTED, job="s")]), "s: i-1 reports HUNG"),
        (replace(GOOD, peaks=[replace(PEAK, bytes=201_000_000)]), "agent 7 used 201 MB"),
        (replace(GOOD, peaks=[replace(PEAK, descriptors=999)]), "999 descriptors"),
        (replace(GOOD, peaks=[replace(HELPER, descriptors=1025)]), "helper 8 had 1025 descriptors"),
        (replace(GOOD, helpers=[replace(HELPERS, alive=9)]), "agent-a has 9 processes"),
        (replace(GOOD, helpers=[replace(HELPERS, ended=2)]), "2 processes have ended and are"),
        (replace(GOOD, shut_nodes=["node1"]), "node1 takes no pods"),
    ],
)
def test_violations__each_invariant_can_be_broken(outcome: Outcome, words: str) -> None:
    (found,) = violations(outcome)
    assert words in found


def test_violations__a_fault_before_any_progress_is_one_more_restart_of_its_incident() -> None:
    entry = "1970-01-01T00:{}Z ShuttingDown replace: suspending the job (HUNG stopped {})"
    again = "again before any progress"
    for at, text, words in (
        ("16:45.5", again, []),
        ("20:45.5", again, ["a: stop a rank in demo-1 was never reported"]),
        ("16:45.5", "", ["a: stop a rank in demo-1 was never reported"]),
    ):
        before = replace(REPORTED, since_s=900.0, timeline=[entry.format(at, text)])
        assert violations(replace(GOOD, incidents=[before])) == words


def test_violations__a_rank_that_died_is_restarted_by_its_kubelet_too() -> None:
    twice = replace(JOB, starts={0: 3, 1: 3})
    killed = replace(GOOD, faults=[replace(STOP, kind=Kind.KILL_RANK.value)], jobs=[twice, STEADY])
    assert violations(killed) == []


def test_violations__a_restart_whose_incident_was_deleted_may_be_begun_again() -> None:
    twice = replace(JOB, starts={0: 3, 1: 3}, deletions=1)
    assert violations(replace(GOOD, jobs=[twice, STEADY])) == []


SHOWN = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""


@pytest.mark.needs("gcc")
def test_incident_log__one_that_is_deleted_at_once_was_reported_and_acts_no_more() -> None:
    space = Namespace(Cluster(Path("kubeconfig"), Path("kubectl")), "a")
    log = IncidentLog([space])
    metadata = {
        "name": "i-1",
        "namespace": "a",
        "uid": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    status = {"verdict": "HUNG", "phase": "ShuttingDown"}
    for found, name in ((metadata, "a"), ({**metadata, "uid": "2"}, "of another run")):
        log.take(Event(Change.SET, {"metadata": {**found, "namespace": name}, "status": status}))
    log.take(Event(Change.SYNCED, {}))
    assert log.is_acting(space)
    log.take(Event(Change.GONE, {"metadata": metadata}))
    assert not log.is_acting(space)
    assert [(seen.job, seen.name, seen.verdict) for seen in log.seen()] == [("a", "i-1", "HUNG")]


def test_chaos__a_moved_clock_is_the_date_alone(tmp_path: Path) -> None:
    """In a program that runs already, as often as the file changes."""
    library, seconds = tmp_path / "clock.so", tmp_path / "seconds"
    source = ROOT / "bench/chaos/clock.c"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60
    )
    seconds.write_bytes(b"\0")
    moved = {"LD_PRELOAD": str(library), "KCOVER_CHAOS_CLOCK": str(seconds)}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", SHOWN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | moved,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for offset in (0, 10, -10, 0):
            with seconds.open("r+b") as file:
                file.write(bytes([offset & 0xFF]))
            before = _clocks()
            program.stdin.write("\n")
            program.stdin.flush()
            date_s, *others = map(float, program.stdout.readline().split())
            after = _clocks()
            assert before[0] + offset <= date_s <= after[0] + offset
            for first, shown, last in zip(before[1:], others, after[1:], strict=True):
                assert first <= shown <= last
        program.stdin.close()


def _clocks() -> tuple[float, float, float]:
    return time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
