"""When a report is sent, and what happens when it cannot be: here by an agent that may write no Lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from kcover_ebpf.agent.reports.lease_writer import LeaseWriter
from kcover_ebpf.agent.reports.report_sender import Draft, ReportSender
from kcover_ebpf.api.fault_report import (
    Ack,
    AckResult,
    FaultReport,
    PodRef,
    ReportedDeviceFault,
    ReportedJob,
)
from kcover_ebpf.api.order import Verb
from kcover_ebpf.errors import ApiError, Forbidden, NotFound, Unreachable
from kcover_ebpf.ids import Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankSnapshot
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Evidence, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.tunables.agent import SEND_CALM_TURN_S, SEND_TURN_S

HUNG = Verdict(VerdictKind.HUNG, Cause.STOPPED)
RANK = RankSnapshot(Pid(1), Role.RANK, State.STOPPED, "u")


class FakeReportServer:
    """Takes what it is sent, or fails as a test says."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.patched: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.fails: dict[str, ApiError] = {}
        self.gone = False

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        self._fail(path)
        assert manager == "kcover-agent"
        self.sent.append(body)

    def merge_patch(self, path: str, body: dict[str, Any]) -> None:
        if "/leases/" in path:
            raise Forbidden("403", 403)
        self._fail(path)
        if self.gone:
            raise NotFound("404")
        self.patched.append(body)

    def create(self, path: str, body: dict[str, Any]) -> None:
        raise Forbidden("403", 403)

    def delete(self, path: str) -> None:
        self._fail(path)
        self.deleted.append(path)

    def _fail(self, path: str) -> None:
        for part, error in self.fails.items():
            if part in path:
                raise error

    @property
    def names(self) -> list[str]:
        return [entry["metadata"]["name"] for entry in self.sent]

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        raise Forbidden("403", 403)


class Bench:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        patch.setattr("kcover_ebpf.agent.reports.report_sender.time.monotonic", lambda: self.now_s)
        patch.setattr(
            "kcover_ebpf.agent.reports.report_sender.random.uniform", lambda low, high: 1.0
        )
        self.server = FakeReportServer()
        self.acks: dict[str, tuple[Ack, ...]] = {}
        self.errors: list[tuple[str, str]] = []
        self.reporter = ReportSender(
            self.server,
            LeaseWriter(self.server, "kcover", "n", self._on_error),
            lambda _, name: self.acks.get(name, ()),
            self._on_error,
        )

    def _on_error(self, verb: str, resource: str, error: ApiError) -> None:
        if resource != "leases":
            self.errors.append((verb, type(error).__name__))

    def put(self, name: str = "r", **report: Any) -> None:
        made = FaultReport(node="n", time_s=self.now_s, sequence=0, pods=(PodRef("p", "u"),))
        self.reporter.put(Draft("team", name, replace(made, **report), ()))

    def turn(self, seconds: float = 0.0) -> int:
        """Let time pass and the thread have a turn; how many reports went out."""
        self.now_s += seconds
        before = len(self.server.sent) + len(self.server.patched)
        self.reporter.flush()
        return len(self.server.sent) + len(self.server.patched) - before


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_report_sender__the_first_report_is_sent_at_once_and_then_every_thirty_seconds(
    bench: Bench,
) -> None:
    bench.put()
    assert bench.turn() == 1
    sent = []
    for _ in range(60):
        bench.put()
        sent.append(bench.turn(1.0))
    assert [index + 1 for index, count in enumerate(sent) if count] == [30, 60]


def test_report_sender__a_changed_verdict_is_sent_at_once(bench: Bench) -> None:
    bench.put()
    bench.turn()
    bench.put(verdict=HUNG)
    assert bench.turn(0.1) == 1
    bench.put(verdict=replace(HUNG, since_s=5.0))
    assert bench.turn(0.1) == 0


def test_report_sender__a_fault_that_becomes_fatal_is_sent_at_once(bench: Bench) -> None:
    """Or the job would be back on the node before that is cordoned."""
    down = ReportedDeviceFault("0000:9a:00.0", "port_down", "port down", age_s=1.0)
    bench.put(devices=(down,))
    assert bench.turn() == 1
    bench.put(devices=(replace(down, age_s=5.0),))
    assert bench.turn(0.1) == 0
    bench.put(devices=(replace(down, age_s=8.0, fatal=True),))
    assert bench.turn(0.1) == 1


def test_report_sender__a_snapshot_of_stalled_ranks_is_sent_again_before_it_is_too_old(
    bench: Bench,
) -> None:
    bench.put(verdict=HUNG, ranks=(RANK,))
    bench.turn()
    sent = 0
    for turn in range(48):
        bench.put(verdict=HUNG, ranks=(replace(RANK, age_s=0.25 * (turn + 1)),))
        sent += bench.turn(0.25)
    assert sent == 4, "every 3 s"


def test_report_sender__it_rests_longer_while_nothing_waits_and_no_rank_hangs(bench: Bench) -> None:
    bench.put()
    assert bench.reporter.pause_s == SEND_TURN_S, "it was not sent yet"
    bench.turn()
    assert bench.reporter.pause_s == SEND_CALM_TURN_S
    bench.put(verdict=HUNG, ranks=(RANK,))
    bench.turn(5.0)
    bench.put(verdict=HUNG, ranks=(RANK,))
    assert bench.reporter.pause_s == SEND_TURN_S, "its ranks have stalled"
    bench.reporter.keep(())
    assert bench.reporter.pause_s == SEND_TURN_S, "it is to be deleted"


def test_report_sender__a_snapshot_that_stays_as_it_was_is_not_sent_again(bench: Bench) -> None:
    bench.put(verdict=HUNG, ranks=(RANK,))
    bench.turn()
    assert sum(bench.turn(0.25) for _ in range(40)) == 0
    bench.acks["r"] = (Ack("1", Verb.STOP, AckResult.DONE, 3),)
    assert bench.turn(0.25) == 1
    assert sum(bench.turn(0.25) for _ in range(40)) == 0


def test_report_sender__an_ack_is_sent_at_once(bench: Bench) -> None:
    bench.put()
    bench.turn()
    bench.acks["r"] = (Ack("1", Verb.STOP, AckResult.DONE, 3),)
    bench.reporter.hurry("team", "r")
    assert bench.turn(0.01) == 1
    (patch,) = bench.server.patched
    assert patch["spec"]["acks"][0]["order"] == "1"
    first = bench.server.sent[-1]["spec"]["sequence"]
    assert patch["spec"] == {"acks": patch["spec"]["acks"], "sequence": first + 1}
    bench.put(verdict=HUNG)
    assert bench.turn(0.01) == 1
    assert bench.server.sent[-1]["spec"]["acks"] == patch["spec"]["acks"], (
        "the next one has it, too"
    )


def test_report_sender__an_ack_is_sent_with_the_whole_report_where_it_was_deleted(
    bench: Bench,
) -> None:
    bench.put()
    bench.turn()
    bench.acks["r"] = (Ack("1", Verb.STOP, AckResult.DONE, 3),)
    bench.server.gone = True
    assert bench.turn(0.01) == 1
    assert bench.server.sent[-1]["spec"]["acks"][0]["order"] == "1"


def test_report_sender__an_ack_with_other_news_goes_with_them(bench: Bench) -> None:
    bench.put()
    bench.turn()
    bench.acks["r"] = (Ack("1", Verb.STOP, AckResult.DONE, 3),)
    bench.put(verdict=HUNG)
    assert bench.turn(0.01) == 1
    assert bench.server.patched == []
    assert bench.server.sent[-1]["spec"]["acks"][0]["order"] == "1"


def test_report_sender__who_waits_for_word_gets_it_without_news(bench: Bench) -> None:
    bench.put()
    bench.turn()
    bench.reporter.again("another")
    assert bench.turn(0.1) == 0
    bench.reporter.again("team")
    assert bench.turn(0.1) == 1
    assert bench.turn(0.1) == 0


def test_report_sender__sequences_grow(bench: Bench) -> None:
    bench.put("a")
    bench.put("b")
    bench.turn()
    first, second = (entry["spec"]["sequence"] for entry in bench.server.sent)
    assert second == first + 1


def test_report_sender__what_an_outage_kept_back_is_made_anew_and_sent_once(bench: Bench) -> None:
    bench.put()
    bench.turn()
    bench.server.fails["faultreports"] = Unreachable("no")
    bench.put(verdict=HUNG)
    began_s = bench.now_s
    for _ in range(60):
        bench.put(verdict=HUNG)
        assert bench.turn(1.0) == 0
    assert bench.reporter.waiting == 1
    # not in a tight loop
    assert 5 <= bench.reporter.counts["failed"] <= 12
    bench.server.fails.clear()
    sent = []
    for _ in range(12):
        bench.put(verdict=HUNG)
        sent.append(bench.turn(1.0))
    assert sum(sent) == 1
    assert bench.server.sent[-1]["spec"]["time"] > f"1970-01-01T00:{int(began_s / 60) + 1:02d}"
    assert bench.reporter.waiting == 0


def test_forbidden__one_report_that_is_refused_does_not_hold_up_the_others(bench: Bench) -> None:
    bench.server.fails["/bad"] = Forbidden("no", 403)
    bench.put("bad")
    bench.put("good")
    bench.turn()
    bench.turn(1.0)
    assert bench.server.names == ["good"]
    assert bench.errors == [("apply", "Forbidden")]
    bench.server.fails.clear()
    bench.turn(11.0)
    assert bench.server.names == ["good", "bad"]


def test_report_sender__the_report_of_a_gang_that_is_gone_is_deleted(bench: Bench) -> None:
    bench.put("a")
    bench.put("b")
    bench.turn()
    bench.reporter.keep({("team", "b")})
    bench.turn()
    bench.turn(60.0)
    assert [path.rpartition("/")[2] for path in bench.server.deleted] == ["a"]
    assert bench.server.names[2:] == ["b"]


def test_report_sender__a_report_that_went_with_its_pods_is_no_error(bench: Bench) -> None:
    bench.put("a")
    bench.turn()
    bench.server.fails["/a"] = NotFound("gone", 404)
    bench.reporter.keep(())
    bench.turn()
    assert bench.errors == []


def test_report_sender__what_an_earlier_agent_left_is_deleted_unless_the_gang_is_there(
    bench: Bench,
) -> None:
    bench.put("here")
    bench.reporter.owe(("team", "here"))
    bench.reporter.owe(("team", "gone"))
    bench.turn()
    assert [path.rpartition("/")[2] for path in bench.server.deleted] == ["gone"]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_report_sender__a_failure_of_one_request_does_not_hold_up_the_others(
    bench: Bench, status: int
) -> None:
    """A report that is too large for etcd is answered with 500, and so is a tenant's broken webhook."""
    bench.server.fails["/bad"] = Unreachable("etcdserver: request is too large", status)
    bench.put("bad")
    bench.put("good")
    assert bench.turn() == 1
    assert bench.turn(5.0) == 0
    assert bench.reporter.counts["failed"] == 1
    bench.server.fails.clear()
    assert bench.turn(6.0) == 1


@pytest.mark.parametrize("status", [0, 429, 503])
def test_report_sender__a_server_that_is_down_or_overloaded_is_not_asked_for_each_report(
    bench: Bench, status: int
) -> None:
    bench.server.fails["faultreports"] = Unreachable("no", status)
    for name in "abc":
        bench.put(name)
    bench.turn()
    assert bench.reporter.counts["failed"] == 1


def test_report_sender__no_error_with_one_report_ends_all(bench: Bench) -> None:
    bench.server.fails["/bad"] = cast("ApiError", TypeError("not to be written as JSON"))
    bench.put("bad")
    bench.put("good")
    assert bench.turn() == 1
    assert bench.errors == [("apply", "ApiError")]


def test_report_sender__no_error_ends_the_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []

    def flush_and_fail() -> None:
        flushed.append(1)
        if len(flushed) == 1:
            raise KeyError("x")
        bench.reporter.close()

    monkeypatch.setattr("kcover_ebpf.agent.reports.report_sender.time.sleep", lambda _: None)
    monkeypatch.setattr(bench.reporter, "flush", flush_and_fail)
    bench.reporter.run()
    assert len(flushed) == 2
    assert bench.errors == [("send", "ApiError")]


WORKING = Verdict(VerdictKind.WORKING, Cause.TRAINING)
SEGFAULT = (Evidence(EvidenceKind.EVENT, "rank 0 was killed by SIGSEGV"),)
CRASHED = Verdict(VerdictKind.CRASHED, Cause.SEGFAULT, evidence=SEGFAULT)


def verdict_of(sent: dict[str, Any]) -> str | None:
    said = sent["spec"].get("verdict")
    return None if said is None else str(said["verdict"])


@pytest.mark.parametrize(
    ("said", "then"),
    [(WORKING, "UNKNOWN"), (None, "UNKNOWN"), (HUNG, "UNKNOWN"), (CRASHED, "CRASHED")],
    ids=["working", "nothing yet", "hung", "announced"],
)
def test_report_sender__a_loop_that_makes_no_progress_says_nothing_about_health(
    bench: Bench, said: Verdict | None, then: str
) -> None:
    bench.reporter._late_s = 3.0
    job = ReportedJob("train", {"job": "train"})
    bench.put(job=job, verdict=said, ranks=(RANK,), suspicious=True)
    bench.turn()
    assert bench.turn(2.9) == 0
    assert bench.turn(0.2) == 1  # once: the snapshot is withdrawn, whatever the verdict
    assert verdict_of(bench.server.sent[-1]) == then
    # renewed as any other report, and its snapshot never is
    assert sum(bench.turn(0.5) for _ in range(62)) == 1
    last = bench.server.sent[-1]["spec"]
    assert "ranks" not in last
    if then == "UNKNOWN":
        assert "has not taken a sample for" in last["verdict"]["unobserved"][0]
    bench.put(job=job, verdict=WORKING)
    assert bench.turn(0.1) == 1
    assert verdict_of(bench.server.sent[-1]) == "WORKING"


def test_report_sender__what_devices_announced_stays_when_the_loop_makes_no_pass(
    bench: Bench,
) -> None:
    bench.reporter._late_s = 3.0
    bench.put(devices=(ReportedDeviceFault("0000:9a:00.0", "xid_79", "x", fatal=True),))
    bench.turn()
    assert bench.turn(30.0) == 1
    assert verdict_of(bench.server.sent[-1]) is None
    assert bench.server.sent[-1]["spec"]["devices"]
