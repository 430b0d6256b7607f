"""Part 5: whether the sensor's probes count the launches of a real NCCL, and how much time they add to a launch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from kcover_ebpf.collectives.nccl.probes import NcclProbes
from kcover_ebpf.ids import Pid
from testbed.ports import free_port
from tools.gpucheck import children
from tools.gpucheck.launcher import DONE
from tools.gpucheck.nccl import READY_S
from tools.gpucheck.nccl_library import torch_problem
from tools.gpucheck.plan import Notes, NotPossible, Plan

LAUNCHES = {
    "library": {"collective": 200, "message": 60},
    "torch": {"collective": 200, "captured": 40},
}
_TIMED, _PAIRS = 400, 7
"""Fewer launches than a stream accepts before its caller has to wait."""
_QUICK_TIMED, _QUICK_PAIRS = 50, 2
_ATTACHED_S = 5.0


def measure(plan: Plan, notes: Notes) -> None:
    probes = NcclProbes()
    try:
        if not probes.status.attached:
            raise NotPossible(probes.status.reason)
        for kind in LAUNCHES:
            reason = torch_problem() if kind == "torch" else ""
            try:
                found = {"not possible here": reason} if reason else _launcher(probes, kind, plan)
            except NotPossible as problem:
                found = {"not possible here": str(problem)}
            notes.add(kind, found)
    finally:
        probes.close()


def _launcher(probes: NcclProbes, kind: str, plan: Plan) -> dict[str, Any]:
    extra = {
        "NCCL_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        # files of the torch stub
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{plan.folder}/probes-pipe-",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{plan.folder}/probes-dump-",
    }
    with children.talking(children.module("launcher", kind), extra) as child:
        child.await_line("loaded", READY_S)
        pid = Pid(child.pid)
        facts: dict[str, Any] = {"functions": attach(probes, pid)}
        before: dict[str, int] = {}
        for what, count in LAUNCHES[kind].items():
            _launch(child, what, count)
            after = _counts(probes, pid)
            more = {name: number - before.get(name, 0) for name, number in after.items()}
            facts[what] = {"launched": count, "counted": {k: v for k, v in more.items() if v}}
            before = after
        facts["identified"] = all(
            launched.birth.identity for launched in probes.read([pid]).launched if launched.counts
        )
        facts["cost"] = _cost(probes, child, pid, quick=plan.quick)
    return facts


def _launch(child: children.Talking, what: str, count: int) -> float:
    """CPU nanoseconds of one launch."""
    child.say(f"{what} {count}")
    # the libraries may print something before it
    return float(child.await_line(DONE, READY_S))


def attach(probes: NcclProbes, pid: Pid) -> int:
    """Number of functions with a probe; raises `NotPossible`, also if it takes too long."""

    def attached() -> bool:
        probes.collect()
        # fails until the last detaching has ended
        probes.attach(pid)
        return probes.attempt(pid) is not None

    _until(attached, "the probes are not attached")
    attempt = probes.attempt(pid)
    if attempt is None or not attempt.links:
        raise NotPossible(f"not attached: {attempt.reason if attempt else ''}")
    return len(attempt.links)


def detach(probes: NcclProbes, pid: Pid) -> None:
    probes.forget(pid)
    _until(lambda: pid not in probes.totals(), "the probes are not detached")


def _until(true: Callable[[], bool], otherwise: str) -> None:
    deadline_s = time.monotonic() + _ATTACHED_S
    while not true():
        if time.monotonic() > deadline_s:
            raise NotPossible(f"{otherwise} after {_ATTACHED_S:.0f} s")
        time.sleep(0.01)


def _counts(probes: NcclProbes, pid: Pid) -> dict[str, int]:
    counted = probes.read([pid])
    found = {
        name: count for launched in counted.launched for name, count in launched.counts.items()
    }
    for message in counted.messages:
        found[f"sent to {message.peer}"] = message.sent_count
        found[f"received from {message.peer}"] = message.received_count
    return found


def _cost(
    probes: NcclProbes, child: children.Talking, pid: Pid, *, quick: bool
) -> dict[str, list[float] | float]:
    """CPU time of a collective's launch with and without probes, in alternating blocks."""
    count, pairs = (_QUICK_TIMED, _QUICK_PAIRS) if quick else (_TIMED, _PAIRS)
    without: list[float] = []
    probed: list[float] = []
    for _ in range(pairs):
        detach(probes, pid)
        without.append(_launch(child, "collective", count))
        attach(probes, pid)
        probed.append(_launch(child, "collective", count))
    more = [on - off for off, on in zip(without, probed, strict=True)]
    return {
        "without_ns": without,
        "with_ns": probed,
        "more_ns": round(statistics.median(more)),
    }
