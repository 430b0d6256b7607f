"""What the errors of an RDMA port explain: a job that moves less than it used to, a slow rank, a stall. Pure.

Errors are counted at both ends of a link, so a port is named, and what is wrong may be at the other end of its link.
They end no job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kcover_ebpf.diagnosis.evidence.snapshot import Finding
from kcover_ebpf.diagnosis.history.port_errors import ErringPort, PortErrorWatch
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.judge.slow_job import is_starved
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, VerdictKind
from kcover_ebpf.tunables.links import PORT_ERRORS_PER_S

_Ranks = Mapping[Pid, ProcessHistory]
_EXPLAINED = frozenset(
    {VerdictKind.SLOW, VerdictKind.HUNG, VerdictKind.UNKNOWN, VerdictKind.LOST_LINK}
)
_OF_NO_LINK = frozenset({Cause.STOPPED, Cause.FROZEN})


def slowed_by_port(ports: PortErrorWatch, ranks: _Ranks, now_ns: int) -> Finding | None:
    """SLOW of a job that moves much less than it used to, if one port has most errors here; else None."""
    port = ports.erring(now_ns, PORT_ERRORS_PER_S)
    if port is None or not port.has_most or not (holders := _holders(port, ranks)):
        return None
    if all(is_starved(ranks, pid) for pid in holders):
        return None
    finding = Finding(VerdictKind.SLOW, Cause.LINK, now_ns)
    return _with_port(replace(finding, culprit=_only(holders, ranks)), port, ranks)


def at_port(finding: Finding, ports: PortErrorWatch, ranks: _Ranks, now_ns: int) -> Finding:
    """A finding about a job that is slow or has stalled, with the port whose errors grow meanwhile.

    A port that the culprit does not have open explains nothing.
    """
    if finding.kind not in _EXPLAINED or finding.cause in _OF_NO_LINK:
        return finding
    is_slow = finding.kind is VerdictKind.SLOW
    port = ports.erring(now_ns, PORT_ERRORS_PER_S if is_slow else 0.0)
    if port is None or not (holders := _holders(port, ranks)):
        return finding
    if finding.pid is not None and finding.pid not in holders:
        return finding
    if any(port.port in evidence.text for evidence in finding.evidence):
        return finding
    if port.has_most and finding.cause is Cause.SLOW_JOB:
        finding = replace(finding, cause=Cause.LINK, culprit=_only(holders, ranks))
    elif port.has_most and finding.cause is Cause.SLOW_RANK and len(holders) == 1:
        finding = replace(finding, cause=Cause.LINK)
    return _with_port(finding, port, ranks)


def own_port_errs(ports: PortErrorWatch, ranks: _Ranks, now_ns: int) -> Pid | None:
    """The only rank here that has the port with most errors open; None where several have, or no port has most."""
    port = ports.erring(now_ns, PORT_ERRORS_PER_S)
    holders = frozenset() if port is None or not port.has_most else _holders(port, ranks)
    return next(iter(holders)) if len(holders) == 1 else None


def _holders(port: ErringPort, ranks: _Ranks) -> frozenset[Pid]:
    return port.pids & ranks.keys()


def _only(holders: frozenset[Pid], ranks: _Ranks) -> Culprit | None:
    if len(holders) != 1:
        return None
    (pid,) = holders
    return Culprit(ranks[pid].rank, pid)


def _with_port(finding: Finding, port: ErringPort, ranks: _Ranks) -> Finding:
    holders = _holders(port, ranks)
    if len(holders) == 1:
        (pid,) = holders
        rank = ranks[pid].rank
        who = f"only {f'pid {pid}' if rank is None else f'rank {rank}'} has it open"
    else:
        who = f"{len(holders)} of {len(ranks)} ranks here have it open"
    evidence = Evidence(EvidenceKind.EDGE, f"{port.text}; {who}")
    victims = finding.victims or tuple(pid for pid in ranks if pid != finding.pid)
    return replace(finding, evidence=(*finding.evidence, evidence), victims=victims)
