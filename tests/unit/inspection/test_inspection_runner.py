"""Each check answers for itself: one that hangs, dies or throws costs nothing but its own result."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.facts.health import Result, worst
from kcover_ebpf.inspection import runner
from kcover_ebpf.inspection.checks import nvidia_smi
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import (
    Check,
    CheckFinding,
    Cost,
    PartResult,
    failed,
    joined,
    passed,
    warned,
)
from tests.unit.support.inspection_hosts import tool

OPTIONS = InspectionOptions()
Find = Callable[[InspectionOptions], Iterator[CheckFinding]]


def check(find: Find, name: str = "it", cost: Cost = Cost.LIGHT, deadline_s: float = 20.0) -> Check:
    return Check(name, cost, deadline_s, "", "", find)


def run(find: Find, cost: Cost = Cost.LIGHT, deadline_s: float = 20.0) -> PartResult:
    (result,) = runner.inspect([check(find, cost=cost, deadline_s=deadline_s)], OPTIONS)
    return result.part


def is_gone(pid: int) -> bool:
    """Ended; a child of a child stays a zombie where no process reaps it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_worst__the_worst_counts() -> None:
    assert worst([Result.PASS, Result.UNKNOWN]) is Result.UNKNOWN
    assert worst([Result.UNKNOWN, Result.WARN, Result.PASS]) is Result.WARN
    assert worst([Result.FAIL, Result.WARN]) is Result.FAIL
    assert worst([]) is Result.UNKNOWN


def test_joined__evidence_comes_worst_first_and_advice_once() -> None:
    one = joined("x", [passed("a"), warned("b", "do"), failed("c", "mend"), warned("d", "do")])
    assert one == PartResult("x", Result.FAIL, ("c", "b", "d", "a"), "mend; do")
    assert joined("x", []).result is Result.UNKNOWN


def test_joined__a_check_is_explained_by_devices_where_all_that_failed_is_theirs() -> None:
    a, b, none = (failed(f"on {device}", "mend", device) for device in ("a", "b", ""))
    assert joined("x", [a, b, a]).devices == ("a", "b")
    assert joined("x", [a, warned("elsewhere", "do")]).devices == ("a",)
    assert joined("x", [a, none]).devices == ()
    assert joined("a", [a], "gpu").devices == (), "a device explains no other"


def test_inspect__an_answer_arrives_whole() -> None:
    lines = [f"{number} ä" for number in range(10000)]

    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        print("noise of a library")
        os.write(1, b"more noise")
        yield from (warned(line, "mend it") for line in lines)

    result = run(find)
    assert (result.result, result.advice) == (Result.WARN, "mend it")
    assert list(result.evidence) == lines


def test_inspect__a_check_that_throws() -> None:
    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        yield passed("a")
        raise ValueError("no such thing")

    result = run(find)
    assert result.result is Result.UNKNOWN
    assert result.evidence == ("the check itself failed: ValueError: no such thing",)


def test_inspect__a_check_whose_process_dies() -> None:
    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        os.kill(os.getpid(), 9)
        yield passed("never")

    assert run(find).evidence == ("its process ended without an answer",)


def test_inspect__an_answer_that_is_too_long() -> None:
    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        yield passed("x" * 2_000_000)

    assert run(find).evidence == ("its answer is longer than 1048576 bytes",)


def test_inspect__a_check_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        child = os.spawnl(os.P_NOWAIT, sys.executable, sys.executable, "-c", deaf)
        pids.write_text(f"{os.getpid()} {child}")
        time.sleep(600)
        yield passed("never")

    start_s = time.monotonic()
    result = run(find, deadline_s=1.0)
    assert result.result is Result.UNKNOWN
    assert result.evidence == ("did not answer within 1 s",)
    assert time.monotonic() - start_s >= 1.0
    end_s = time.monotonic() + 10
    while not all(is_gone(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_inspect__a_process_that_cannot_be_ended_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one in D: a signal does nothing to it."""
    ended: list[int] = []
    kill = os.kill
    monkeypatch.setattr(os, "killpg", lambda pid, _: ended.append(pid))
    monkeypatch.setattr(os, "kill", lambda pid, _: None)
    monkeypatch.setattr(runner, "CHECK_REAP_S", 0.2)

    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        time.sleep(600)
        yield passed("never")

    try:
        result = run(find, deadline_s=0.3)
    finally:
        for pid in ended:
            kill(pid, 9)
            os.waitpid(pid, 0)
    last = f"process {ended[0]} cannot be ended, and was left behind"
    assert result.evidence == ("did not answer within 0.3 s", last)


def test_inspect__light_checks_run_at_once_and_keep_their_order(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]

    def meet(_: InspectionOptions) -> Iterator[CheckFinding]:
        (tmp_path / str(os.getpid())).touch()
        while len(list(tmp_path.iterdir())) < len(names):
            time.sleep(0.01)
        yield passed("met")

    results = runner.inspect([check(meet, name, deadline_s=60.0) for name in names], OPTIONS)
    assert [(result.name, result.part.result) for result in results] == [
        (name, Result.PASS) for name in names
    ]


def test_inspect__checks_that_hang_cost_no_other_its_result() -> None:
    def slow(_: InspectionOptions) -> Iterator[CheckFinding]:
        time.sleep(600)
        yield passed("never")

    def quick(_: InspectionOptions) -> Iterator[CheckFinding]:
        yield passed("quick")

    names = ["a", "b", "c", "d"]
    checks = [check(slow, name, deadline_s=1.0) for name in names[:3]] + [check(quick, "d")]
    results = runner.inspect(checks, OPTIONS)
    assert [result.name for result in results] == names
    assert results[3].part.result is Result.PASS


def test_inspect__a_heavy_check_is_not_run_on_a_busy_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"

    def find(_: InspectionOptions) -> Iterator[CheckFinding]:
        mark.touch()
        yield passed("ran")

    monkeypatch.setattr(runner, "reason_not_to_run", lambda _: "GPU 0 is busy")
    result = run(find, Cost.HEAVY)
    assert (result.result, result.evidence) == (Result.UNKNOWN, ("GPU 0 is busy",))
    assert not mark.exists()
    monkeypatch.setattr(runner, "reason_not_to_run", lambda _: "")
    assert run(find, Cost.HEAVY).result is Result.PASS


def test_inspect__a_tool_that_hangs_is_ended_and_does_not_hang_the_inspection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool(tmp_path, "nvidia-smi", f"trap '' TERM; echo $$ >{tmp_path}/pid; sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (result,) = runner.inspect([replace(nvidia_smi.CHECK, deadline_s=0.5)], OPTIONS)
    assert (result.part.result, result.left_behind) == (Result.UNKNOWN, None)
    assert result.part.evidence == ("did not answer within 0.5 s",)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_inspect__a_tool_that_cannot_be_ended_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that hangs in a driver: the check that waits for it is ended, and it is not."""
    tool(tmp_path, "nvidia-smi", f"echo $$ >{tmp_path}/pid; exec sleep 600")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(runner, "CHECK_REAP_S", 0.2)
    killpg = os.killpg
    monkeypatch.setattr(os, "killpg", lambda pid, number: None if number else killpg(pid, number))
    (result,) = runner.inspect([check(nvidia_smi.find, deadline_s=1.0)], OPTIONS)
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)
    assert result.left_behind == pid
    assert result.part.evidence[1] == f"process {pid} cannot be ended, and was left behind"
