"""Sends reports: immediately when the verdict changes, soon when anything else does, otherwise rarely.

"Rarely" is as rarely as freshness allows. The loop leaves the newest draft of each gang here, and a thread sends
it. A report that could not be sent is rebuilt by the next pass. The agent's Lease confirms unchanged reports and
executed orders; if the API server refuses the Lease, reports do. The newest acks of a gang are always in one of the
two: the Lease drops those that the report contains, and the report is sent those for which the Lease has no room.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from kcover_ebpf.agent.reports.lease_writer import LeaseApi, LeaseWriter
from kcover_ebpf.agent.reports.report_changes import has_new_details, news_of
from kcover_ebpf.agent.reports.report_pace import Allowance, nodes_of
from kcover_ebpf.api.agent_lease import MOST_ACKS
from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.fault_report import (
    API_VERSION,
    Ack,
    FaultReport,
    PodRef,
    object_of,
)
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, NotFound, Unreachable
from kcover_ebpf.gang.report_size import fitted
from kcover_ebpf.model.rank_snapshot import RankPace
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.tunables.agent import (
    CONFIRMED_WITHIN_S,
    SEND_CALM_TURN_S,
    SEND_REFUSED_S,
    SEND_RETRY_S,
    SEND_TURN_S,
)

MANAGER = "kcover-agent"
_NEWEST_ACKS = 2
"""Acks per gang that must reach the controller: it waits for the answer to one order at a time."""
_BASE = f"/apis/{API_VERSION}/namespaces"


class Api(LeaseApi, Protocol):
    """The requests by which reports and Leases are written."""

    def apply(self, path: str, body: dict[str, object], manager: str) -> object:
        """Create an object, or replace the fields in `body`."""
        ...

    def delete(self, path: str) -> object:
        """Delete one object."""
        ...


@dataclass(frozen=True, slots=True)
class Draft:
    """A report as the loop made it; sequence and acks are added when it is sent."""

    namespace: str
    name: str
    report: FaultReport
    owners: tuple[PodRef, ...]
    paces: tuple[RankPace, ...] = ()
    """How much the ranks here wait for those on other nodes; published in the Lease."""
    compares: bool = False
    """True while the ranks are compared with those on other nodes, which takes less than a minute."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def news(self) -> object:
        """The part that is sent at once when it differs."""
        return news_of(self.report)

    def unseen(self, late_s: float) -> Draft:
        """What remains true if nothing was sampled for `late_s`: announced faults, without snapshots."""
        said_verdict = self.report.verdict
        if self.report.job is None or (said_verdict is not None and said_verdict.is_announced):
            return replace(self, report=replace(self.report, ranks=()))
        text = f"everything: the agent has not taken a sample for {late_s:.0f} s"
        now_s = time.time()
        verdict = Verdict(VerdictKind.UNKNOWN, Cause.UNKNOWN, since_s=now_s, unobserved=(text,))
        report = replace(self.report, time_s=now_s, verdict=verdict, ranks=())
        return replace(self, report=report)


@dataclass(slots=True)
class _Sent:
    report: FaultReport
    news: object
    at_s: float
    acks: tuple[Ack, ...]
    sequence: int
    confirmed_s: float = -math.inf
    """When the Lease last confirmed the report."""

    @property
    def word_s(self) -> float:
        """When the report was last sent or confirmed."""
        return max(self.at_s, self.confirmed_s)


class ReportSender:
    """One thread that sends; `put` and `hurry` may be called from any other."""

    def __init__(
        self,
        api: Api,
        lease: LeaseWriter,
        acks: Callable[[str, str], tuple[Ack, ...]],
        on_error: Callable[[str, str, ApiError], None],
        late_s: float = math.inf,
    ) -> None:
        """`acks`: of the gang with this report; `on_error`: called with verb, resource and error.

        `late_s`: if `put` has not been called for this long, the sampling loop is stuck; report UNKNOWN instead of
        repeating old health.
        """
        self._api, self._lease, self._acks, self._on_error = api, lease, acks, on_error
        self._late_s, self._fed_s = late_s, time.monotonic()
        # must also grow over restarts, and files on disk may be lost
        self._sequence = time.time_ns() // 1_000_000
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._allowances: defaultdict[tuple[str, str], Allowance] = defaultdict(Allowance)
        self._gone: set[tuple[str, str]] = set()
        self._refused: dict[tuple[str, str], float] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._not_before_s = 0.0
        self._confirm_now = False
        self.turn_s = time.monotonic()
        """Monotonic time at which `run` last began a turn or made a request."""
        self.counts: Counter[str] = Counter()
        """Counts by outcome: sent, renewed (the Lease), failed, deleted."""

    @property
    def waiting(self) -> int:
        """Number of reports with news that have not reached the API server."""
        return sum(self._is_news(draft) for draft in list(self._drafts.values()))

    def put(self, draft: Draft) -> None:
        """Take the newest draft of a gang (or of the node)."""
        self._drafts[draft.key] = draft
        self._fed_s = time.monotonic()
        self._gone.discard(draft.key)
        if self._is_news(draft):
            self._wake.set()

    def keep(self, keys: Collection[tuple[str, str]]) -> None:
        """Delete all other reports: their gangs are gone."""
        for key in self._drafts.keys() - set(keys):
            del self._drafts[key]
            self._gone.add(key)
            self._wake.set()

    def owe(self, key: tuple[str, str]) -> None:
        """Take responsibility for a report of an earlier agent, whose gang may be gone."""
        if key not in self._drafts:
            self._gone.add(key)

    def hurry(self, namespace: str, name: str) -> None:
        """An order was carried out: send this report now, even if the last attempt was refused."""
        self._refused.pop((namespace, name), None)
        self._wake.set()

    def again(self, namespace: str) -> None:
        """A client waits for reports on the jobs of a namespace: send them even without news."""
        for key in [pair for pair in list(self._sent) if pair[0] == namespace]:
            if self._lease.is_usable(time.monotonic()):
                self._confirm_now = True
            else:
                self._sent.pop(key, None)
        self._wake.set()

    def close(self) -> None:
        """Ask `run` to return; does not wait for it."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Send until `close` is called."""
        while not self._stopping:
            self.turn_s = time.monotonic()
            self._wake.wait(self.pause_s)
            self._wake.clear()
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave the node silent
                self._on_error("send", "faultreports", ApiError(repr(error)))
                time.sleep(SEND_RETRY_S[0])

    @property
    def pause_s(self) -> float:
        """Seconds until the next turn, unless urgent news ends the pause."""
        drafts = list(self._drafts.values())
        waits = self._gone or self._confirm_now or self._failures
        if waits or any(self._is_stalled(draft) or self._is_news(draft) for draft in drafts):
            return SEND_TURN_S
        return SEND_CALM_TURN_S

    def flush(self) -> None:
        """Send what is due now."""
        now_s = time.monotonic()
        if now_s >= self._not_before_s:
            self._send_due(now_s)

    def _send_due(self, now_s: float) -> None:
        try:
            drafts = self._believed(now_s)
            # 1,000 nodes answer an order at the same moment: before anything else
            acks = tuple(ack for draft in drafts for ack in self._unreported(draft))[:MOST_ACKS]
            if self._lease.lacks(acks):
                self._confirm(drafts, acks, now_s)
            for draft in drafts:
                if self._is_due(draft, now_s):
                    self._try("apply", draft.key, now_s, partial(self._send, draft, now_s))
            for key in list(self._gone):
                self._try("delete", key, now_s, partial(self._delete, key))
            self._confirm(drafts, acks, now_s)
            self._failures = 0
        except Unreachable as error:
            pause_s = SEND_RETRY_S[min(self._failures, len(SEND_RETRY_S) - 1)] * random.uniform(
                0.5, 1.5
            )
            self._failures += 1
            # all agents lose the server at once; they must not all reconnect at once
            self._not_before_s = now_s + max(pause_s, error.retry_after_s or 0.0)

    def _unreported(self, draft: Draft) -> list[Ack]:
        """The newest acks of a gang that its report does not contain."""
        sent = self._sent.get(draft.key)
        reported = () if sent is None else sent.acks
        return [ack for ack in self._acks(*draft.key)[-_NEWEST_ACKS:] if ack not in reported]

    def _confirm(self, drafts: Sequence[Draft], acks: tuple[Ack, ...], now_s: float) -> None:
        """Renew the Lease if that is due."""
        pace = self._lease.pace
        periods = [
            pace.fast_s(nodes_of(draft.report)) for draft in drafts if self._is_stalled(draft)
        ]
        if any(draft.compares for draft in drafts):
            periods.append(pace.compared_s)
        period_s = min(periods, default=pace.heartbeat_s)
        if not self._lease.lacks(acks) and self._is_outdated(drafts, now_s):
            # the next pass shows whether it still holds
            return
        asked, usable = self._confirm_now, self._lease.is_usable(now_s)
        if not self._lease.is_due(now_s, period_s, acks) and not (asked and usable):
            return
        self._confirm_now = False
        holding = [(draft, sent) for draft in drafts if (sent := self._holding(draft)) is not None]
        current = [sent.sequence for _, sent in holding]
        paces = {sent.sequence: draft.paces for draft, sent in holding if draft.paces}
        self.turn_s = time.monotonic()
        if self._lease.renew(now_s, period_s, current, acks, paces):
            self.counts["renewed"] += 1
            for _, sent in holding:
                sent.confirmed_s = now_s

    def _is_outdated(self, drafts: Sequence[Draft], now_s: float) -> bool:
        """True if stalled ranks were seen too long ago to be confirmed as unchanged."""
        unseen_s = now_s - self._fed_s
        is_late = CONFIRMED_WITHIN_S < unseen_s < self._late_s
        return is_late and any(self._is_stalled(draft) for draft in drafts)

    def _holding(self, draft: Draft) -> _Sent | None:
        """The sent report that this draft confirms; None if it differs, or if nothing was observed since."""
        sent = self._sent.get(draft.key)
        if sent is None or draft.report is sent.report or sent.news != draft.news:
            return None
        return None if has_new_details(sent.report, draft.report) else sent

    def _is_stalled(self, draft: Draft) -> bool:
        """True if other parts need to know that the ranks are unchanged."""
        sent = self._sent.get(draft.key)
        # a gang stopped by an order is unchanged: 1,000 nodes that confirm it would delay the next order
        is_made = sent is None or draft.report is not sent.report
        return is_made and bool(draft.report.ranks) and draft.report.is_urgent

    def _believed(self, now_s: float) -> list[Draft]:
        drafts, silent_s = list(self._drafts.values()), now_s - self._fed_s
        return drafts if silent_s < self._late_s else [draft.unseen(silent_s) for draft in drafts]

    def _try(self, verb: str, key: tuple[str, str], now_s: float, call: Callable[[], None]) -> None:
        if now_s < self._refused.get(key, 0.0):
            return
        self.turn_s = time.monotonic()
        try:
            call()
            self._refused.pop(key, None)
        except Exception as error:
            # an error with one report must not end all others
            known = error if isinstance(error, ApiError) else ApiError(repr(error))
            self.counts["failed"] += 1
            self._on_error(verb, "faultreports", known)
            if isinstance(known, Unreachable) and known.concerns_all:
                raise known from error
            # a namespace that is being deleted, one report that is too large, the webhook of one tenant (a 500)
            # must not hold up the reports of the others
            self._refused[key] = now_s + SEND_REFUSED_S

    def _is_news(self, draft: Draft) -> bool:
        sent = self._sent.get(draft.key)
        return sent is None or sent.news != draft.news or self._owes_acks(draft, sent)

    def _owes_acks(self, draft: Draft, sent: _Sent) -> bool:
        if self._lease.is_usable(time.monotonic()):
            return self._lease.lacks(self._unreported(draft))
        return sent.acks != self._acks(*draft.key)

    def _is_due(self, draft: Draft, now_s: float) -> bool:
        sent = self._sent.get(draft.key)
        if sent is None or self._owes_acks(draft, sent):
            return True
        pace, stalled = self._lease.pace, self._is_stalled(draft)
        nodes, allowance = nodes_of(draft.report), self._allowances[draft.key]
        refill_s = pace.refill_s(nodes)
        if sent.news != draft.news:
            return allowance.may_send(now_s, refill_s, is_news=True)
        # its deletion also removed what the controller knew of the gang
        refresh_s = pace.stalled_refresh_s(nodes) if stalled else pace.refresh_s
        if now_s - sent.at_s >= refresh_s:
            return True
        if stalled:
            may_send = allowance.may_send(now_s, refill_s, is_news=False)
        else:
            may_send = now_s - sent.at_s >= pace.details_s
        if may_send and has_new_details(sent.report, draft.report):
            return True
        if self._lease.is_usable(now_s):
            return False
        return now_s - sent.word_s >= (pace.fast_s(nodes) if stalled else pace.heartbeat_s)

    def _send(self, draft: Draft, now_s: float) -> None:
        self._sequence += 1
        acks, sent = self._acks(*draft.key), self._sent.get(draft.key)
        path = f"{_BASE}/{draft.namespace}/faultreports/{draft.name}"
        is_same = sent is not None and sent.news == draft.news
        owes_acks = sent is not None and is_same and self._owes_acks(draft, sent)
        if sent is not None and owes_acks and self._answer(path, acks):
            self._sent[draft.key] = replace(sent, acks=acks, sequence=self._sequence)
            self.counts["sent"] += 1
            return
        report = fitted(replace(draft.report, sequence=self._sequence, acks=acks))
        body = object_of(report, draft.namespace, draft.name, draft.owners)
        self._api.apply(path, body, MANAGER)
        self._allowances[draft.key].spend(now_s)
        self._sent[draft.key] = _Sent(
            draft.report, draft.news, time.monotonic(), acks, self._sequence
        )
        self.counts["sent"] += 1

    def _answer(self, path: str, acks: tuple[Ack, ...]) -> bool:
        """Add acks of orders to a report; False if the report no longer exists."""
        # a whole report has some KB, and 1,000 nodes answer at the same moment
        spec = {"sequence": self._sequence, "acks": [encode(ack) for ack in acks]}
        try:
            self._api.merge_patch(path, {"spec": spec})
        except NotFound:
            return False
        return True

    def _delete(self, key: tuple[str, str]) -> None:
        # it may have been deleted with its pods
        with contextlib.suppress(NotFound):
            self._api.delete(f"{_BASE}/{key[0]}/faultreports/{key[1]}")
        self.counts["deleted"] += 1
        self._gone.discard(key)
        self._sent.pop(key, None)
        self._allowances.pop(key, None)
