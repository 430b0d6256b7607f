"""The state of one job on several hosts: which hosts joined, what they report, verdict and orders. Pure.

The reports are judged as those of a cluster's agents: a host is treated as a node with one pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kcover_ebpf.api.fault_report import FaultReport, PodRef
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.diagnosis import decisions
from kcover_ebpf.gang.gang_input import GangInput, GangVerdict, NodeState
from kcover_ebpf.gang.gang_judge import merge
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.run.join.messages import (
    VERSION,
    CoordinatorMessage,
    EndOrder,
    Hello,
    PartEnd,
    StartOrder,
)
from kcover_ebpf.run.outcome import refusal
from kcover_ebpf.settings import Act, Settings
from kcover_ebpf.tunables.host import JOIN_ENDED_S
from kcover_ebpf.tunables.recovery import VERDICT_STABLE_S


@dataclass(slots=True)
class _Host:
    """State of one host of the job."""

    joined_s: float
    address: str
    run: str
    is_connected: bool = True
    received: ReceivedReport | None = None
    ended: int | None = None
    """Exit code of its job; None while the job runs."""
    start: int = 0
    """Number of orders to restart the job that it has taken, or should have."""


class JoinedGang:
    """Used by one thread at a time; times are unix seconds by the coordinator's clock."""

    def __init__(self, name: str, hosts: int, settings: Settings) -> None:
        """`hosts`: number of hosts of the job."""
        self._name, self._count, self._settings = name, hosts, settings
        self._hosts: dict[str, _Host] = {}
        self._announced_verdict: Verdict | None = None
        self._signature: tuple[object, ...] = ()
        self._since_s = 0.0
        self._incident_count = 0
        self._incident = ""
        self._done_acts: set[tuple[str, Act]] = set()
        self._end: EndOrder | None = None
        """The order that is being carried out; None without one."""
        self._ordered_s = 0.0
        self._ordered: set[str] = set()
        """Hosts that were connected when the order was given."""
        self._obeyed: set[str] = set()
        self._start: StartOrder | None = None
        """The last order to restart the job; None before the first."""
        self._restart_count = 0
        self._has_trained = False
        """True if the job has made progress since its last start."""
        self.is_over = False
        """True once no further order will follow."""

    @property
    def is_ending(self) -> bool:
        """True once the job is being ended, or is over: members must be informed."""
        return self.is_over or self._end is not None

    # ---- messages of members

    def join(self, hello: Hello, address: str, now_s: float) -> str | None:
        """Admit a host, or readmit it; returns why it is refused, None if it is not.

        A run that lost its connection may reconnect before the loss is noticed here: it gets its previous place.
        """
        known = self._hosts.get(hello.host)
        is_back = known is not None and known.run == hello.run
        if hello.version != VERSION:
            return "the runs of all hosts must have the same version"
        if hello.job != self._name:
            return f"the job of the coordinator is {self._name}, not {hello.job}"
        if (hello.hosts, hello.act) != (self._count, self._settings.act):
            return "--join-hosts and --act must be the same on all hosts"
        if known is not None and known.is_connected and not is_back:
            return f"a host named {hello.host} has already joined: host names must differ"
        if known is None and len(self._hosts) >= self._count:
            return f"all {self._count} hosts have already joined"
        if self.is_over:
            return "the job is over"
        if known is not None and is_back:
            known.is_connected, known.address = True, address
        else:
            self._hosts[hello.host] = _Host(now_s, address, hello.run, start=hello.start)
            self._obeyed.discard(hello.host)
        return None

    def missed(self, hello: Hello) -> Iterator[CoordinatorMessage]:
        """Orders that a host lacks, which was admitted with this message: they were lost with its connection."""
        if hello.start < self._hosts[hello.host].start:
            yield CoordinatorMessage(start=self._start)
        if self._end is not None and hello.host not in self._obeyed:
            yield CoordinatorMessage(end=self._end)

    def leave(self, host: str) -> None:
        """Note that the connection of a host has ended."""
        self._hosts[host].is_connected = False

    def report(self, host: str, report: FaultReport, now_s: float) -> None:
        """Take a host's report about its ranks."""
        own = self._hosts[host]
        if self._end is not None and self._end.act is not Act.SNAPSHOT:
            return  # the host is being ended: what it reports now is not a fault
        ranks = tuple(replace(rank, pod_uid=host) for rank in report.ranks)
        verdict = report.verdict
        if verdict is not None and verdict.culprit is not None:
            culprit = replace(verdict.culprit, pod=host, pod_uid=host, node=host, host=host)
            verdict = replace(verdict, culprit=culprit)
        said = replace(
            report, node=host, pods=(PodRef(host, host),), ranks=ranks, verdict=verdict, acks=()
        )
        own.received = ReceivedReport(said, now_s)
        self._has_trained |= report.trained

    def ended(self, host: str, end: PartEnd) -> None:
        """Note that the job of a host has ended by itself, unless it was started again since."""
        own = self._hosts[host]
        if end.start == own.start:
            own.ended = end.code

    def done(self, host: str, order: str) -> None:
        """Note that a host has carried out an order."""
        if self._end is not None and self._end.id == order:
            self._obeyed.add(host)

    # ---- messages to all members

    def tick(self, now_s: float) -> tuple[CoordinatorMessage, ...]:
        """The message for all members now; called a few times a second."""
        if self.is_over:
            return ()
        if self._end is not None:
            return tuple(self._after_end(self._end, now_s))
        if len(self._hosts) == self._count and all(
            host.ended is not None or not host.is_connected for host in self._hosts.values()
        ):
            self.is_over = True
            return (CoordinatorMessage(over=True),)
        return tuple(self._judge(now_s))

    def _after_end(self, end: EndOrder, now_s: float) -> Iterator[CoordinatorMessage]:
        """What follows an order once all hosts have carried it out, or one does not answer.

        A host that has lost its connection since the order may be back in time.
        """
        there = self._connected
        ready = there & self._obeyed
        is_late = now_s - self._ordered_s > JOIN_ENDED_S
        if (self._ordered | there) - ready and not is_late:
            return
        if end.act is Act.RESTART and len(ready) == self._count:
            self._end, self._restart_count = None, self._restart_count + 1
            self._announced_verdict, self._has_trained = None, False
            for host in self._hosts.values():
                host.received = host.ended = None
                host.start += 1
            budget = self._settings.policy.restarts
            self._start = StartOrder(budget.pause_s(self._restart_count))
            yield CoordinatorMessage(start=self._start)
            return
        self.is_over = True
        yield CoordinatorMessage(over=True)

    def _judge(self, now_s: float) -> Iterator[CoordinatorMessage]:
        gang_verdict = self._verdict(now_s)
        verdict = gang_verdict.verdict
        if not self._is_stable(verdict, now_s):
            return
        reported = self._announced_verdict
        if not verdict.same_as(reported) or verdict.acts_otherwise(reported):
            self._announced_verdict = verdict
            yield CoordinatorMessage(verdict=verdict)
        if gang_verdict.unsaid and not self._is_hopeless(verdict):
            return
        decision = decisions.decide(verdict, self._settings.act)
        if decision.act is Act.OBSERVE or (self._incident, decision.act) in self._done_acts:
            return
        self._done_acts.add((self._incident, decision.act))
        yield CoordinatorMessage(end=self._order(decision.act, decision.reason, verdict, now_s))

    def _order(self, act: Act, reason: str, verdict: Verdict, now_s: float) -> EndOrder:
        why = None
        if act is Act.RESTART:
            budget = self._settings.policy.restarts
            why = refusal(budget, self._restart_count, made_progress=self._has_trained)
        if why is not None:
            act = Act.SHUTDOWN
        order = EndOrder(f"{self._incident}-{act.value}", act, reason, verdict, why or "")
        if act is not Act.SNAPSHOT:
            self._end, self._ordered_s, self._obeyed = order, now_s, set()
            self._ordered = self._connected
        return order

    @property
    def _connected(self) -> set[str]:
        return {name for name, host in self._hosts.items() if host.is_connected}

    def _is_hopeless(self, verdict: Verdict) -> bool:
        """True once a missing host has kept the others waiting for longer than any policy allows."""
        limit_s = self._settings.policy.hard_limit_s
        return limit_s is not None and verdict.time_s - verdict.since_s >= limit_s

    def _verdict(self, now_s: float) -> GangVerdict:
        gang_input = GangInput(
            name=self._name,
            seen=[host.received for host in self._hosts.values() if host.received is not None],
            pods=[_pod(name, host) for name, host in self._hosts.items()],
            nodes={name: NodeState(name, host.is_connected) for name, host in self._hosts.items()},
            policy=self._settings.policy,
            now_s=now_s,
        )
        gang_verdict = merge(gang_input)
        verdict = self._named(gang_verdict.verdict)
        absent = self._count - len(self._hosts)
        if absent:
            text = f"{absent} of {self._count} hosts have not joined"
            verdict = replace(verdict, unobserved=(text, *verdict.unobserved))
        return replace(gang_verdict, verdict=verdict, depends=gang_verdict.depends or bool(absent))

    def _named(self, verdict: Verdict) -> Verdict:
        """The verdict with the id of its incident, and hosts in place of pods."""
        if not verdict.opens_incident:
            self._incident = ""
        elif not self._incident:
            self._incident_count += 1
            self._incident = f"{self._name}-{self._incident_count}"
        culprit = verdict.culprit
        if culprit is not None:
            host = culprit.node or culprit.host
            culprit = replace(culprit, host=host, pod=None, pod_uid=None, node=None)
        return replace(verdict, incident=self._incident, culprit=culprit)

    def _is_stable(self, verdict: Verdict, now_s: float) -> bool:
        culprit = verdict.culprit
        who = (culprit.host, culprit.rank, culprit.pid) if culprit is not None else None
        signature = (verdict.kind, verdict.cause, who)
        if signature != self._signature:
            self._signature, self._since_s = signature, now_s
        return verdict.is_announced or now_s - self._since_s >= VERDICT_STABLE_S


def _pod(name: str, host: _Host) -> Pod:
    phase = "Running" if host.ended is None else "Failed" if host.ended else "Succeeded"
    return Pod(
        namespace="",
        name=name,
        uid=name,
        node=name,
        phase=phase,
        created_s=host.joined_s,
        deleted_s=None,
        labels={},
        annotations={},
        owners=(),
        containers=(),
        ready=host.ended is None,
        address=host.address,
    )
