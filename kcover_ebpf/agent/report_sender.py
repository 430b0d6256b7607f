"""Sends reports: at once when a verdict changes or an order was carried out, else as seldom as will do.

The loop leaves the newest draft of each gang here, and a thread sends it. What could not be sent is
made anew by the next pass, so that nothing stale is ever sent.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from kcover_ebpf.agent.report_size import fitted
from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.fault_report import (
    API_VERSION,
    Ack,
    FaultReport,
    LocalVerdict,
    PodRef,
    object_of,
)
from kcover_ebpf.diagnosis.verdict import Cause, EvidenceKind, VerdictKind
from kcover_ebpf.errors import ApiError, NotFound, Unreachable

MANAGER = "kcover-agent"
HEARTBEAT_S = 30.0
_PICTURE_S = 1.0
_RETRY_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_REFUSED_S = 10.0
_OVERLOADED = (0, 429, 503)
"""No answer, or one that is about the server: all reports wait. Any other is about the one request."""
_BASE = f"/apis/{API_VERSION}/namespaces"


class Api(Protocol):
    """What is needed of a session."""

    def apply(self, path: str, body: dict[str, object], manager: str) -> object:
        """Server-side apply."""
        ...

    def merge_patch(self, path: str, body: dict[str, object]) -> object:
        """Change fields."""
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

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the object."""
        return self.namespace, self.name

    @property
    def news(self) -> object:
        """What is sent at once when it differs."""
        said, report = self.report.verdict, self.report
        who = said.culprit if said is not None else None
        return (
            None if said is None else (said.verdict, said.cause, who),
            report.suspicious,
            bool(report.ranks),
            report.trained,
            report.pods,
            tuple(
                (each.device, each.fault, each.fatal, each.unfit, each.pods)
                for each in report.devices
            ),
            tuple(each.uid for each in report.idle),
        )

    def unseen(self, late_s: float) -> Draft:
        """What is still true when nothing was sampled for `late_s`: what was announced, and no picture."""
        said = self.report.verdict
        if self.report.job is None or (said is not None and _is_announced(said)):
            return replace(self, report=replace(self.report, ranks=()))
        text = f"everything: the agent has not taken a sample for {late_s:.0f} s"
        verdict = LocalVerdict(VerdictKind.UNKNOWN, Cause.UNKNOWN, unobserved=(text,))
        report = replace(self.report, time_s=time.time(), verdict=verdict, ranks=())
        return replace(self, report=report)


def _is_announced(verdict: LocalVerdict) -> bool:
    return any(each.kind is EvidenceKind.EVENT for each in verdict.evidence)


@dataclass(slots=True)
class _Sent:
    report: FaultReport
    news: object
    at_s: float
    acks: tuple[Ack, ...]


class ReportSender:
    """One thread that sends; `put` and `hurry` may be called from any other."""

    def __init__(
        self,
        api: Api,
        acks: Callable[[str, str], tuple[Ack, ...]],
        on_error: Callable[[str, str, ApiError], None],
        late_s: float = math.inf,
    ) -> None:
        """`acks`: of the gang with this report; `on_error`: verb, resource, what was wrong.

        `late_s`: where `put` is not called for so long, its caller stands still: what it said of the gangs'
        health is not repeated, UNKNOWN is reported.
        """
        self._api, self._acks, self._on_error = api, acks, on_error
        self._late_s, self._fed_s = late_s, time.monotonic()
        # must grow over restarts, too, and nothing on disk is certain to be there
        self._sequence = time.time_ns() // 1_000_000
        self._drafts: dict[tuple[str, str], Draft] = {}
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._gone: set[tuple[str, str]] = set()
        self._refused: dict[tuple[str, str], float] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._failures = 0
        self._not_before_s = 0.0
        self.turn_s = time.monotonic()
        """When `run` last looked, or made a request (monotonic)."""
        self.counts: Counter[str] = Counter()
        """sent, failed, deleted."""

    @property
    def waiting(self) -> int:
        """Reports with news that have not reached the API server."""
        return sum(self._is_news(draft) for draft in list(self._drafts.values()))

    def put(self, draft: Draft) -> None:
        """The newest state of a gang (or of the node)."""
        self._drafts[draft.key] = draft
        self._fed_s = time.monotonic()
        self._gone.discard(draft.key)
        if self._is_news(draft):
            self._wake.set()

    def keep(self, keys: Collection[tuple[str, str]]) -> None:
        """All others are of gangs that are gone: their reports are deleted."""
        for key in self._drafts.keys() - set(keys):
            del self._drafts[key]
            self._gone.add(key)
            self._wake.set()

    def owe(self, key: tuple[str, str]) -> None:
        """A report of an earlier life of this agent that may be without a gang now."""
        if key not in self._drafts:
            self._gone.add(key)

    def hurry(self, namespace: str, name: str) -> None:
        """An order was carried out: say so in this report now, even if the one before was refused."""
        self._refused.pop((namespace, name), None)
        self._wake.set()

    def again(self, namespace: str) -> None:
        """Somebody waits for word of the jobs of a namespace: send it, though it may be no news."""
        for key in [each for each in list(self._sent) if each[0] == namespace]:
            self._sent.pop(key, None)
        self._wake.set()

    def close(self) -> None:
        """End `run` soon."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Send until `close`."""
        while not self._stopping:
            self.turn_s = time.monotonic()
            self._wake.wait(0.25)
            self._wake.clear()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a thread that ends would leave the node silent
                self._on_error("send", "faultreports", ApiError(repr(error)))
                time.sleep(_RETRY_S[0])

    def look(self) -> None:
        """Send what is due now."""
        now_s = time.monotonic()
        if now_s >= self._not_before_s:
            self._send_due(now_s)

    def _send_due(self, now_s: float) -> None:
        try:
            for draft in self._believed(now_s):
                if self._is_due(draft, now_s):
                    self._try("apply", draft.key, now_s, partial(self._send, draft))
            for key in list(self._gone):
                self._try("delete", key, now_s, partial(self._delete, key))
            self._failures = 0
        except Unreachable as error:
            pause_s = _RETRY_S[min(self._failures, len(_RETRY_S) - 1)] * random.uniform(0.5, 1.5)
            self._failures += 1
            # all agents lose the server at once; they must not all come back at once
            self._not_before_s = now_s + max(pause_s, error.retry_after_s or 0.0)

    def _believed(self, now_s: float) -> list[Draft]:
        drafts, silent_s = list(self._drafts.values()), now_s - self._fed_s
        return drafts if silent_s < self._late_s else [each.unseen(silent_s) for each in drafts]

    def _try(self, verb: str, key: tuple[str, str], now_s: float, call: Callable[[], None]) -> None:
        if now_s < self._refused.get(key, 0.0):
            return
        self.turn_s = time.monotonic()
        try:
            call()
            self._refused.pop(key, None)
        except Exception as error:
            # no error with one report may end all the others
            known = error if isinstance(error, ApiError) else ApiError(repr(error))
            self.counts["failed"] += 1
            self._on_error(verb, "faultreports", known)
            if isinstance(known, Unreachable) and known.status in _OVERLOADED:
                raise known from error
            # a namespace that is being deleted, one report that is too large, the webhook of one tenant (a 500)
            # must not hold up the reports of the others
            self._refused[key] = now_s + _REFUSED_S

    def _is_news(self, draft: Draft) -> bool:
        sent = self._sent.get(draft.key)
        return sent is None or sent.news != draft.news or sent.acks != self._acks(*draft.key)

    def _is_due(self, draft: Draft, now_s: float) -> bool:
        sent = self._sent.get(draft.key)
        if sent is None or self._is_news(draft):
            return True
        # what is stopped by an order is as it was: 1,000 nodes that say so every second would delay the next order
        is_picture = bool(draft.report.ranks) and draft.report is not sent.report
        pause_s = _PICTURE_S if is_picture and draft.report.is_urgent else HEARTBEAT_S
        return now_s - sent.at_s >= pause_s

    def _send(self, draft: Draft) -> None:
        self._sequence += 1
        acks, sent = self._acks(*draft.key), self._sent.get(draft.key)
        path = f"{_BASE}/{draft.namespace}/faultreports/{draft.name}"
        only_acks = sent is not None and sent.news == draft.news and sent.acks != acks
        if not only_acks or not self._answer(path, acks):
            report = fitted(replace(draft.report, sequence=self._sequence, acks=acks))
            body = object_of(report, draft.namespace, draft.name, draft.owners)
            self._api.apply(path, body, MANAGER)
        self._sent[draft.key] = _Sent(draft.report, draft.news, time.monotonic(), acks)
        self.counts["sent"] += 1

    def _answer(self, path: str, acks: tuple[Ack, ...]) -> bool:
        """Add to a report which orders were carried out; False if it is not there any more."""
        # a whole report is read as YAML, some KB of it, and 1,000 nodes answer at the same moment
        spec = {"sequence": self._sequence, "acks": [encode(each) for each in acks]}
        try:
            self._api.merge_patch(path, {"spec": spec})
        except NotFound:
            return False
        return True

    def _delete(self, key: tuple[str, str]) -> None:
        # its pods may have taken it along
        with contextlib.suppress(NotFound):
            self._api.delete(f"{_BASE}/{key[0]}/faultreports/{key[1]}")
        self.counts["deleted"] += 1
        self._gone.discard(key)
        self._sent.pop(key, None)
