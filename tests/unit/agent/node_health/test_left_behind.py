"""What a check failed, and left behind in the kernel, stays failed for as long as its process is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.agent.node_health import left_behind
from kcover_ebpf.agent.node_health.inspector import Inspector, InspectorOptions
from kcover_ebpf.agent.node_health.left_behind import LeftBehind
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import process_tree
from kcover_ebpf.ids import Pid
from kcover_ebpf.inspection.result import CheckFinding, CheckResult, Cost, PartResult, failed
from kcover_ebpf.inspection.round import RoundAnswer, RoundOptions
from tests.unit.support.inspection_hosts import tool
from tests.waiting import until

GPU, OTHER = "0000:5d:00.0", "0000:5e:00.0"
# A round whose signals reach no process of a check's group: as if all of them were in D.
DEAF_ROUND = """
import os, sys
from kcover_ebpf.inspection import round, runner
runner.CHECK_REAP_S, killpg = 0.2, os.killpg
os.killpg = lambda group, number: killpg(group, number) if number == 0 else None
sys.exit(round.main(sys.argv[1:]))
"""
# The first thread ends, another one stays: so is the rest of a process that was killed, with a thread in D.
WITHOUT_ITS_FIRST = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""
SYS_EXIT = {"x86_64": 60, "aarch64": 93}


def started() -> int:
    """Of this process, in clock ticks."""
    stat = process_tree.read_stat(os.getpid())
    assert stat is not None
    return stat.start_ticks


class Rounds:
    """Rounds of a real inspector, one after another, of one plug-in."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        argv = RoundOptions.argv

        def deaf(self: RoundOptions) -> list[str]:
            return [sys.executable, "-S", "-c", DEAF_ROUND, argv(self)[-1]]

        monkeypatch.setattr(RoundOptions, "argv", deaf)
        self.broken, self.pid, self.starts = folder / "broken", folder / "pid", folder / "starts"
        tool(
            folder / "plugins",
            "disk",
            f"echo >>{self.starts}; test -e {self.broken} || exit 0; sleep 600 >/dev/null 2>&1 &\n"
            f"echo $! >{self.pid}; echo 'no answer from the disk'; exit 1",
        )
        wanted = RoundOptions(("plugin/disk",), str(folder / "plugins"))
        options = InspectorOptions("n1", 600.0, folder / "health.json", wanted)
        self.inspector = Inspector(None, options, lambda *_: None)  # type: ignore[arg-type]

    def one(self) -> NodeHealth:
        self.inspector._inspect()
        assert self.inspector.latest_health is not None
        return self.inspector.latest_health

    def end_helper(self) -> None:
        if self.pid.exists():
            helper = int(self.pid.read_text())
            os.kill(helper, signal.SIGKILL)
            until(lambda: (stat := process_tree.read_stat(helper)) is None or not stat.alive)
            self.pid.unlink()


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    made = Rounds(tmp_path, monkeypatch)
    yield made
    made.end_helper()


def test_inspector__a_check_that_failed_and_hangs_fails_until_it_has_ended(rounds: Rounds) -> None:
    rounds.broken.touch()
    for count in (1, 2, 3):
        health = rounds.one()
        (check,) = health.checks
        assert (health.result, check.result, check.rounds) == (Result.FAIL, Result.FAIL, count)
        assert check.evidence[0] == "no answer from the disk"
        assert check.unmended
    helper = rounds.pid.read_text().strip()
    assert check.evidence[-1].startswith(
        f"not run again: process {helper} of an earlier round hangs in it since 2"
    )
    assert check.advice == "see the documentation of disk"
    assert rounds.starts.read_text() == "\n", "it was run once"
    rounds.broken.unlink()
    rounds.end_helper()
    health = rounds.one()
    (check,) = health.checks
    assert (health.result, check.result, health.clean_rounds) == (Result.PASS, Result.PASS, 1)
    assert rounds.starts.read_text() == "\n\n"


def test_inspector__a_round_without_an_answer_ends_no_failure_that_hangs(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds.broken.touch()
    rounds.one()
    monkeypatch.setattr(rounds.inspector, "_ask", lambda _: (RoundAnswer(), "it gave no answer"))
    (check,) = rounds.one().checks
    assert (check.result, check.rounds) == (Result.FAIL, 2)


def test_inspector__a_gpu_fails_for_as_long_as_the_check_that_failed_it_hangs(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was there, and the process hangs as it closes the device."""
    lost = failed("GPU 0: lost", "reset it", GPU)
    nvml = CheckResult("nvml", Cost.LIGHT, 1.0, (lost,), os.getpid())

    def device(address: str, result: Result, text: str) -> PartResult:
        return PartResult(address, result, (text,), kind="gpu")

    def ask(wanted_options: RoundOptions) -> tuple[RoundAnswer, str]:
        if wanted_options.left_out:
            silent = (device(text, Result.UNKNOWN, "NVML is silent") for text in (GPU, OTHER))
            return RoundAnswer((), tuple(silent)), ""
        first = device(GPU, Result.FAIL, "GPU 0: lost")
        second = device(OTHER, Result.FAIL, "its link is down")
        return RoundAnswer((nvml,), (first, second)), ""

    monkeypatch.setattr(rounds.inspector, "_ask", ask)
    rounds.one()
    health = rounds.one()
    assert [(part.name, part.result, part.rounds) for part in health.devices] == [
        (GPU, Result.FAIL, 2),
        (OTHER, Result.UNKNOWN, 1),
    ]
    assert health.devices[0].evidence[0] == health.checks[0].evidence[0] == "GPU 0: lost"
    assert health.checks[0].devices == (GPU,), "and explains the check meanwhile"


def checked(result: Result, left_behind: int | None) -> CheckResult:
    return CheckResult("nvml", Cost.LIGHT, 1.0, (CheckFinding(result, "x", "do"),), left_behind)


def test_of_check__what_did_not_fail_is_not_known_while_it_hangs() -> None:
    for result in (Result.PASS, Result.WARN, Result.UNKNOWN):
        left = left_behind.of_check(checked(result, os.getpid()), (), 1.8e9)
        assert left is not None
        assert left.check.result is Result.UNKNOWN
        assert left.check.evidence[0].startswith("not run again: ")
        assert left_behind.of_check(checked(result, None), (), 1.8e9) is None


def test_with_left_behind__what_a_round_saw_fail_itself_counts() -> None:
    kept = [PartResult(GPU, Result.FAIL, ("old",)), PartResult(OTHER, Result.UNKNOWN, ("hangs",))]
    found = [PartResult("a", Result.PASS), PartResult(GPU, Result.FAIL, ("new",))]
    both = left_behind.with_left_behind(found, kept)
    assert both == [*found, kept[1]], "its own failure is the newer one"
    found = [PartResult(GPU, Result.WARN), PartResult(OTHER, Result.PASS)]
    assert left_behind.with_left_behind(found, kept) == [kept[0], found[1]]


@pytest.mark.skipif(os.uname().machine not in SYS_EXIT, reason="the number of exit is not known")
def test_is_there__a_process_whose_first_thread_has_ended() -> None:
    number = str(SYS_EXIT.get(os.uname().machine))
    argv = [sys.executable, "-c", WITHOUT_ITS_FIRST, number]
    with subprocess.Popen(argv) as child:
        until(lambda: Path(f"/proc/{child.pid}/stat").read_text().split()[2] == "Z")
        left = left_behind.of_check(checked(Result.FAIL, child.pid), (), 1.8e9)
        assert left is not None, "a thread of it hangs"
        assert left.is_there()
        child.kill()
    assert not left.is_there()


def test_is_there__another_process_of_the_same_number() -> None:
    check = PartResult("a", Result.FAIL)
    assert LeftBehind(Pid(os.getpid()), started(), check).is_there()
    assert not LeftBehind(Pid(os.getpid()), started() - 1, check).is_there()
