"""A job whose ranks all spin in one collective: the host sees no difference, NCCL's counts name the rank."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.host import capabilities
from testbed.skips import ROOT
from tests.kernel.command import PYTHON, impatient, run

STEPS, WORLD = 40, 3
RANK = "RANK=$r WORLD_SIZE=3 {enter} {python} {program} {steps} {late} {way}"
JOB = f"for r in 0 1 2; do {RANK} & done; wait"

pytestmark = pytest.mark.needs("cgroup2", "netns")


@pytest.fixture
def netns() -> Iterator[str]:
    """A network namespace with its own loopback, as a pod has one."""
    name = f"kcover-{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def job(enter: str, late: int, way: str) -> list[str]:
    program = ROOT / "testbed/faults/collective.py"
    script = JOB.format(
        enter=enter, python=PYTHON, program=program, steps=STEPS, late=late, way=way
    )
    return ["--", "sh", "-c", script]


@pytest.mark.alone  # its ranks need a core each
def test_the_rank_that_never_joined_is_named_in_its_own_network(tmp_path: Path, netns: str) -> None:
    options = (*impatient(tmp_path), "-o", "json", "--act", "shutdown", "--for", "90s")
    with run(*options, *job(f"ip netns exec {netns}", 1, "spin"), folder=tmp_path) as one:
        assert one.finish(100) == 75, one.err
    faults = [event for event in one.events() if event.get("verdict") in {"HUNG", "DEADLOCK"}]
    last = faults[-1]
    assert (last["verdict"], last["cause"]) == ("HUNG", "not_in_collective")
    assert last["culprit"]["rank"] == 1
    assert last["victims"] == [0, 2]
    assert "collective" in {item["kind"] for item in last["evidence"]}
    reported = [event for event in one.events() if event.get("fact") == "collectives_seen"]
    assert [entry["behind"][0]["rank"] for entry in reported] == [1]


@pytest.mark.long
def test_ranks_that_have_all_joined_are_reported_and_not_ended(tmp_path: Path) -> None:
    """Equal counts are no second kind of evidence: a long step looks the same."""
    options = (*impatient(tmp_path), "-o", "json", "--act", "shutdown", "--for", "90s")
    with run(*options, *job("", -1, "yield"), folder=tmp_path) as one:
        assert one.finish(100) != 75, one.err
    last = [event for event in one.events() if event.get("verdict") == "HUNG"][-1]
    assert (last["cause"], last["culprit"]) == ("collective_stuck", None)
    actions = [event["act"] for event in one.events() if event["event"] == "action"]
    assert "shutdown" not in actions


def test_the_privilege_to_enter_a_network_is_used_for_a_moment_only() -> None:
    """In a child, because a dropped privilege is not regained."""
    program = """
from pathlib import Path
from kcover_ebpf.host import capabilities as c
admin = c.Capability.SYS_ADMIN
def may_raise(capability):
    (line,) = [each for each in Path("/proc/thread-self/status").read_text().splitlines() if each.startswith("CapPrm:")]
    return bool(int(line.split()[1], 16) >> capability & 1)
c.drop(spare=c.SPARE)
assert admin not in c.effective() and may_raise(admin)
with c.raised(admin):
    assert admin in c.effective()
assert admin not in c.effective() and not may_raise(c.Capability.SYSLOG)
with c.raised(c.Capability.SYSLOG):
    assert c.Capability.SYSLOG not in c.effective()
"""
    assert capabilities.Capability.SYS_ADMIN in capabilities.effective()
    done = subprocess.run(
        [str(ROOT / ".venv/bin/python"), "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
