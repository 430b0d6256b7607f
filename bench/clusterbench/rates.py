"""What the agents of one GPU job write in each of its states: `python rates.py NODES`; prints JSON.

Agents are independent, so a few of them are run, in virtual time, each as one of NODES; their own code decides what is
written, and a counter replaces the API server. It is its own program, so that the bench can run it with the
package of another commit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kcover_ebpf.agent.reports.report_sender import Draft, ReportSender
from kcover_ebpf.api.fault_report import FaultReport, PodRef, ReportedJob
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot, SocketSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind

_AGENTS = 10
"""That are run; the rates are those of as many as there are nodes."""
_RANKS = 8
_PEERS = 14
"""Connections of each rank: rings and trees of a few communicators."""
_FRAMES = 24
_BEGAN_S = 1.7e9
_BEGIN_S, _END_S = 30, 330
"""The first half minute is that of the change of state, counted by itself."""


class Counter:
    """Takes what is written, and counts it."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self.writes, self.sent_bytes = 0, 0

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        """A report."""
        self._count(body)

    def merge_patch(self, path: str, body: dict[str, Any]) -> None:
        """A Lease, or answers in a report."""
        self._count(body)

    def list(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """How many agents there are."""
        return {"metadata": {"remainingItemCount": self._nodes - 1}}

    def _count(self, body: dict[str, Any]) -> None:
        self.writes += 1
        self.sent_bytes += len(json.dumps(body))


def _socket(rank: int, peer: int, age_s: float) -> SocketSnapshot:
    ends = Endpoint(f"10.0.{rank}.1", 40_000 + peer), Endpoint(f"10.1.{peer}.1", 50_000)
    return SocketSnapshot(*ends, "ESTABLISHED", window=65_536, sent_age_s=age_s, payload=True)


def _rank(number: int, nodes: int, state: State, age_s: float, place: int) -> RankSnapshot:
    return RankSnapshot(
        Pid(1000 + number),
        Role.RANK,
        state,
        pod_uid="11111111-2222-3333-4444-555555555555",
        tid=1000 + number,
        rank=number,
        world_size=nodes * _RANKS,
        text=f"{state.value} for {age_s:.1f} s",
        age_s=round(age_s, 3),
        threshold_s=3.0,
        sent_age_s=round(age_s, 3),
        received_age_s=round(age_s, 3),
        thread_read=True,
        stack=tuple(
            f"libcuda.so.535.104+{0x1A2B00 + place + number:x}" for number in range(_FRAMES)
        ),
        sockets=tuple(_socket(number, peer, round(age_s, 3)) for peer in range(_PEERS)),
    )


def training(at_s: float, nodes: int) -> dict[str, Any]:
    """All is well."""
    return {"verdict": Verdict(VerdictKind.WORKING, Cause.TRAINING, since_s=_BEGAN_S + at_s)}


def suspicious(at_s: float, nodes: int) -> dict[str, Any]:
    """The ranks burn a CPU and exchange nothing that is seen: each pass finds them at something else."""
    state = (State.COMPUTING, State.ON_DEVICE)[int(at_s) % 2]
    ranks = tuple(_rank(number, nodes, state, 0.5, int(at_s * 16)) for number in range(_RANKS))
    return training(at_s, nodes) | {"ranks": ranks}


def long_steps(at_s: float, nodes: int) -> dict[str, Any]:
    """Steps of 20 s; in the second half of each it cannot be known whether the ranks make progress."""
    return suspicious(at_s, nodes) if at_s % 20 >= 10 else training(at_s, nodes)


def stalled(at_s: float, nodes: int) -> dict[str, Any]:
    """None makes progress; where each waits was read in the first seconds."""
    place = 0x1000 * min(int(at_s), 2)
    ranks = tuple(
        _rank(number, nodes, State.FUTEX, 3.0 + at_s, place if at_s < 3 else 0x2000)
        for number in range(_RANKS)
    )
    found = (Evidence(EvidenceKind.TIME, f"no progress for {3.0 + at_s:.1f} s"),)
    verdict = Verdict(VerdictKind.HUNG, Cause.WAIT_CYCLE, since_s=_BEGAN_S - 3.0, evidence=found)
    return {"verdict": verdict, "ranks": ranks, "suspicious": True}


STATES: dict[str, Callable[[float, int], dict[str, Any]]] = {
    "training": training,
    "suspicious": suspicious,
    "long steps": long_steps,
    "stalled": stalled,
}


def _sender(api: Counter, node: str) -> ReportSender:
    made: Any = ReportSender
    try:
        from kcover_ebpf.agent.reports.lease_writer import LeaseWriter
    except ModuleNotFoundError:  # a commit before there were Leases
        return made(api, lambda *_: (), print)  # type: ignore[no-any-return]
    lease = LeaseWriter(api, "kcover", node, print)  # type: ignore[arg-type]
    return ReportSender(api, lease, lambda *_: (), print)  # type: ignore[arg-type]


def draft(node: str, at_s: float, nodes: int, state: str) -> FaultReport:
    """The report that an agent would make now."""
    made = FaultReport(
        node,
        _BEGAN_S + at_s,
        1,
        "0.1.0",
        job=ReportedJob("llm", {"batch.kubernetes.io/job-name": "llm"}, "Job"),
        pods=(PodRef(f"llm-{node}", "11111111-2222-3333-4444-555555555555"),),
        trained=True,
    )
    return replace(made, **STATES[state](at_s, nodes))


def measure(state: str, nodes: int) -> dict[str, float]:
    """Writes and bytes a second of all nodes, after the change and during its first half minute."""
    api, clock = Counter(nodes), [1000.0]
    time.monotonic = lambda: clock[0]
    names = [f"n{number}" for number in range(_AGENTS)]
    senders = {name: _sender(api, name) for name in names}
    early = (0, 0)
    for at_s in range(-_BEGIN_S, _END_S):
        if at_s == 0:
            before = api.writes, api.sent_bytes
        if at_s == _BEGIN_S:
            early = api.writes, api.sent_bytes
        for name, sender in senders.items():
            now = draft(name, at_s, nodes, state if at_s >= 0 else "training")
            sender.put(Draft("team", f"llm.{name}", now, ()))
            sender.put(Draft("kcover", name, FaultReport(name, _BEGAN_S + at_s, 1, "0.1.0"), ()))
            sender.flush()
        clock[0] += 1.0
    share, span_s = nodes / _AGENTS, _END_S - _BEGIN_S
    return {
        "writes_per_s": round((api.writes - early[0]) * share / span_s, 1),
        "kb_per_s": round((api.sent_bytes - early[1]) * share / span_s / 1000, 1),
        "first_30s_writes": round((early[0] - before[0]) * share),
        "first_30s_mb": round((early[1] - before[1]) * share / 1e6, 1),
    }


def main() -> None:
    """All states, as JSON."""
    nodes = int(sys.argv[1])
    began_s = time.process_time()
    found: dict[str, Any] = {state: measure(state, nodes) for state in STATES}
    json.dump(found | {"cpu_s": round(time.process_time() - began_s, 1)}, sys.stdout)


if __name__ == "__main__":
    main()
