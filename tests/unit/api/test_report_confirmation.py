"""Reports and the Lease of their agent together: what is sent, what is confirmed, and what is neither."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcover_ebpf.agent.reports.lease_writer import LeaseWriter
from kcover_ebpf.agent.reports.report_sender import Draft, ReportSender
from kcover_ebpf.api.agent_lease import MOST_ACKS, AgentLease, lease_of
from kcover_ebpf.api.fault_report import Ack, AckResult, FaultReport, PodRef
from kcover_ebpf.api.order import Verb
from kcover_ebpf.errors import ApiError, Forbidden, NotFound, Unreachable
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.rank_snapshot import RankPace, RankSnapshot
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from tests.unit.support.report_builders import rank

HUNG = Verdict(VerdictKind.HUNG, Cause.STOPPED)
STOPPED = rank(0, State.STOPPED, age_s=3.0, world_size=2)
STOP = Ack("i-1", Verb.STOP, AckResult.DONE, 3)


class FakeConfirmationServer:
    """Keeps reports and Leases; how many agents there are is what a test says."""

    def __init__(self) -> None:
        self.agents = 2
        self.reports: list[dict[str, Any]] = []
        self.leases: list[AgentLease] = []
        self.patched: list[dict[str, Any]] = []
        self.made = 0
        self.fails: dict[str, ApiError] = {}

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        self._fail(path)
        self.reports.append(body)

    def merge_patch(self, path: str, body: dict[str, Any]) -> None:
        self._fail(path)
        if "/leases/" not in path:
            self.patched.append(body)
            return
        if not self.made:
            raise NotFound("404", 404)
        self._take(body)

    def create(self, path: str, body: dict[str, Any]) -> None:
        self._fail(path)
        assert path.endswith("/namespaces/kcover/leases")
        self.made += 1
        self._take(body)

    def _take(self, body: dict[str, Any]) -> None:
        found = lease_of(json.loads(json.dumps(body)))
        assert found is not None
        self.leases.append(found)

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        assert query == {"limit": "1"}
        return {"items": [{}], "metadata": {"remainingItemCount": self.agents - 1}}

    def delete(self, path: str) -> None:
        self._fail(path)

    def _fail(self, path: str) -> None:
        for part, error in self.fails.items():
            if part in path:
                raise error


class Bench:
    """An agent whose loop makes every report anew each second."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in ("report_sender", "lease_writer"):
            patch.setattr(f"kcover_ebpf.agent.reports.{module}.time.monotonic", lambda: self.now_s)
            patch.setattr(
                f"kcover_ebpf.agent.reports.{module}.random.uniform", lambda low, high: high
            )
        self.server, self.acks = FakeConfirmationServer(), dict[str, tuple[Ack, ...]]()
        self.errors: list[str] = []
        lease = LeaseWriter(self.server, "kcover", "n", self._on_error)
        self.sender = ReportSender(
            self.server, lease, lambda _, name: self.acks.get(name, ()), self._on_error
        )

    def _on_error(self, verb: str, resource: str, error: ApiError) -> None:
        self.errors.append(f"{verb} {resource}")

    def put(self, name: str = "r", *ranks: RankSnapshot, **report: Any) -> None:
        made = FaultReport("n", self.now_s, 0, pods=(PodRef("p", "u"),), ranks=ranks)
        self.sender.put(Draft("team", name, replace(made, **report), ()))

    def turn(self, seconds: float = 0.0) -> tuple[int, int]:
        """Let time pass and the thread have a turn: reports, and renewals of the Lease."""
        self.now_s += seconds
        before = len(self.server.reports), len(self.server.leases)
        self.sender.flush()
        return len(self.server.reports) - before[0], len(self.server.leases) - before[1]

    def seconds(self, count: int, *ranks: RankSnapshot, **report: Any) -> tuple[int, int]:
        """Passes of one second in which the ranks stay as they are and grow older; what was written in all."""
        reports = leases = 0
        for _ in range(count):
            self.now_s += 1.0
            ranks = tuple(rank_snapshot.later(1.0) for rank_snapshot in ranks)
            self.put("r", *ranks, **report)
            more = self.turn()
            reports, leases = reports + more[0], leases + more[1]
        return reports, leases

    @property
    def lease(self) -> AgentLease:
        return self.server.leases[-1]

    def sequence(self, index: int = -1) -> int:
        return int(self.server.reports[index]["spec"]["sequence"])


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_report_confirmation__in_calm_times_the_lease_alone_is_written(bench: Bench) -> None:
    bench.put(trained=True)
    assert bench.turn() == (1, 1)
    assert bench.seconds(115, trained=True) == (0, 3)
    assert bench.lease.current == {bench.sequence()}
    assert bench.lease.valid_s == 45


def test_report_confirmation__while_ranks_are_compared_with_those_of_other_nodes_the_lease_says_how_much_they_wait(
    bench: Bench,
) -> None:
    pace = RankPace(1, 0.3, 96, 0, "u", places="CC3", slot=7)
    bench.put(trained=True)
    bench.turn()
    written = 0
    for second in range(60):
        bench.now_s += 1.0
        made = FaultReport("n", bench.now_s, 0, pods=(PodRef("p", "u"),), trained=True)
        bench.sender.put(Draft("team", "r", made, (), (pace,), compares=second < 30))
        written += bench.turn()[1]
    assert bench.lease.paces == {bench.sequence(): (pace,)}
    assert 10 <= written <= 13, "once in 3 s for 30 s, and then as in calm times"


def test_report_confirmation__a_whole_report_is_sent_every_two_minutes_all_the_same(
    bench: Bench,
) -> None:
    bench.put()
    bench.turn()
    assert bench.seconds(1300)[0] == 10


def test_report_confirmation__a_report_that_was_deleted_is_there_again_while_its_ranks_hang(
    bench: Bench,
) -> None:
    """Nothing announces that: the agent may not read reports."""
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    bench.turn()
    bench.server.reports.clear()
    bench.seconds(25, STOPPED, verdict=HUNG, suspicious=True)
    assert bench.server.reports
    assert bench.lease.current == {bench.sequence()}


def test_report_confirmation__ranks_that_stay_stalled_are_confirmed_every_three_seconds(
    bench: Bench,
) -> None:
    bench.put()
    bench.turn()
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    assert bench.turn(1.0) == (1, 0), "the news at once"
    assert bench.seconds(18, STOPPED, verdict=HUNG, suspicious=True) == (0, 6)
    assert bench.seconds(40, STOPPED, verdict=HUNG, suspicious=True)[0] == 2
    assert bench.lease.current == {bench.sequence()}
    assert bench.lease.valid_s == 10


def test_report_confirmation__ranks_that_were_seen_a_while_ago_are_not_confirmed_as_they_were(
    bench: Bench,
) -> None:
    """They may have been resumed since: the next pass shows it."""
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    bench.turn()
    bench.seconds(4, STOPPED, verdict=HUNG, suspicious=True)
    assert [bench.turn(1.5) for _ in range(4)] == [(0, 0)] * 4
    assert bench.seconds(1, STOPPED, verdict=HUNG, suspicious=True)[1] == 1


def test_report_confirmation__a_rank_that_changes_is_sent_and_not_confirmed_before_it_was(
    bench: Bench,
) -> None:
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    bench.turn()
    bench.seconds(4, STOPPED, verdict=HUNG, suspicious=True)
    waits = replace(STOPPED, state=State.FUTEX, age_s=0.0)
    assert bench.seconds(1, waits, verdict=HUNG, suspicious=True)[0] == 1
    assert bench.server.reports[-1]["spec"]["ranks"][0]["state"] == State.FUTEX.value


def test_forbidden__what_the_server_refuses_is_confirmed_no_more(bench: Bench) -> None:
    """Or a controller would believe for ever that the ranks of that job are stopped."""
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    bench.turn()
    bench.seconds(6, STOPPED, verdict=HUNG, suspicious=True)
    assert bench.lease.current == {bench.sequence()}
    bench.server.fails["/faultreports/"] = Forbidden("a webhook of the tenant", 403)
    bench.seconds(4, trained=True)
    bench.seconds(40, trained=True)
    assert bench.lease.current == frozenset()
    assert bench.errors.count("apply faultreports") >= 1


def test_report_confirmation__a_job_that_flaps_is_sent_at_a_bounded_rate(bench: Bench) -> None:
    bench.put()
    bench.turn()
    sent = 0
    for second in range(600):
        bench.now_s += 1.0
        bench.put(suspicious=bool(second % 2))
        sent += bench.turn()[0]
    assert sent <= 600 / 5 + 6


def test_report_confirmation__ranks_of_which_nothing_is_known_are_sent_anew_every_half_minute(
    bench: Bench,
) -> None:
    """They compute, and are found at something else in each pass: no reason to write each second."""
    bench.put("r", rank(0, State.COMPUTING, age_s=50.0))
    bench.turn()
    sent = 0
    for second in range(300):
        bench.now_s += 1.0
        state = (State.COMPUTING, State.ON_DEVICE)[second % 2]
        bench.put("r", rank(0, state, age_s=0.5))
        sent += bench.turn()[0]
    assert sent == 10


def test_report_confirmation__an_answer_to_an_order_goes_before_reports_and_in_the_lease(
    bench: Bench,
) -> None:
    bench.put()
    bench.turn()
    bench.acks["r"] = (STOP,)
    bench.sender.hurry("team", "r")
    assert bench.turn(0.01) == (0, 1)
    assert bench.lease.acks == (STOP,)
    assert bench.turn(0.01) == (0, 0)
    assert bench.server.patched == []


def test_report_confirmation__an_answer_that_a_report_contains_leaves_the_lease_with_the_next_renewal(
    bench: Bench,
) -> None:
    """Or answers to orders that are over would take the room of others for as long as the gang is there."""
    bench.put()
    bench.turn()
    bench.acks["r"] = (STOP,)
    bench.turn(0.01)
    bench.put(verdict=HUNG)
    assert bench.turn(0.01) == (1, 0), "no renewal is written for this"
    assert bench.server.reports[-1]["spec"]["acks"][0]["order"] == STOP.order
    bench.seconds(40, verdict=HUNG)
    assert bench.lease.acks == ()
    assert bench.seconds(130, verdict=HUNG)[0] >= 1
    assert bench.server.reports[-1]["spec"]["acks"][0]["order"] == STOP.order


@pytest.mark.parametrize("gangs", [1, 10, 40], ids=lambda count: f"{count} gangs")
@pytest.mark.parametrize("later", [False, True], ids=["all at once", "one gang later"])
def test_report_confirmation__the_newest_answer_of_each_gang_is_in_the_lease_or_in_its_report(
    bench: Bench, gangs: int, later: bool
) -> None:
    def answer(number: int, gang: str) -> None:
        acks = tuple(replace(STOP, order=f"{gang}-{number}-{part}") for part in "ab")
        bench.acks[gang] = (*bench.acks.get(gang, ()), *acks)
        bench.sender.hurry("team", gang)

    names = [f"gang{number}" for number in range(gangs)]
    for name in names:
        answer(0, name)
        bench.put(name)
    bench.turn()
    bench.turn(1.0)
    for name in names:
        answer(1, name)
        if later:
            bench.turn(1.0)
    answer(2, names[0])
    bench.turn(1.0)
    newest = [ack.order for name in names for ack in bench.acks[name][-2:]]
    heard = {ack.order for ack in bench.lease.acks}
    for body in (*bench.server.reports, *bench.server.patched):
        heard |= {ack["order"] for ack in body["spec"].get("acks", ())}
    assert heard >= set(newest)
    assert all(len(lease.acks) <= MOST_ACKS for lease in bench.server.leases)


def test_report_confirmation__what_an_order_stopped_is_not_confirmed(bench: Bench) -> None:
    bench.put("r", STOPPED, verdict=HUNG, suspicious=True)
    bench.turn()
    held = bench.sender._drafts["team", "r"]
    for _ in range(15):
        bench.sender.put(held)
        bench.turn(1.0)
    assert bench.lease.current == frozenset()
    assert len(bench.server.leases) <= 2, "1,000 nodes that say so would delay the next order"


def test_forbidden__without_permission_for_leases_reports_say_everything(bench: Bench) -> None:
    bench.server.fails["/leases"] = Forbidden("403", 403)
    bench.put()
    assert bench.turn() == (1, 0)
    assert bench.seconds(90) == (3, 0)
    assert bench.errors == ["renew leases"], "it is not asked for at every turn"
    bench.acks["r"] = (STOP,)
    bench.turn(0.1)
    assert bench.server.patched[-1]["spec"]["acks"][0]["order"] == "i-1"
    bench.server.fails.clear()
    bench.seconds(300)
    assert bench.server.leases, "and is tried again after five minutes"


@pytest.mark.parametrize("status", [0, 429, 503])
def test_report_confirmation__a_server_that_is_away_is_given_time(
    bench: Bench, status: int
) -> None:
    bench.server.fails["/leases"] = Unreachable("no", status)
    bench.put()
    bench.turn()
    bench.seconds(30)
    assert 3 <= bench.errors.count("renew leases") <= 12
    bench.server.fails.clear()
    assert bench.seconds(30)[1] >= 1


def test_report_confirmation__whoever_waits_for_word_gets_a_confirmation(bench: Bench) -> None:
    """The controller waits for progress after a restart, which may have been reported before it asked."""
    bench.put(trained=True)
    bench.turn()
    bench.seconds(5, trained=True)
    bench.sender.again("other")
    assert bench.seconds(1, trained=True) == (0, 0)
    bench.sender.again("team")
    assert bench.seconds(1, trained=True) == (0, 1)
    assert bench.lease.current == {bench.sequence()}


def test_report_confirmation__the_more_agents_there_are_the_less_each_writes(bench: Bench) -> None:
    bench.server.agents = 6_000
    bench.put(trained=True)
    bench.turn()
    assert bench.sender._lease.pace.agents == 6_000
    assert bench.seconds(2_400, trained=True)[1] in (6, 7), "every 400 s"
