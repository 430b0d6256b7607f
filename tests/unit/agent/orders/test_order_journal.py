"""What an agent leaves on disk for the next one: orders carried out, stops in force, last reports."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcover_ebpf.agent.orders.order_journal import (
    ContainerRef,
    OrderJournal,
    ProcessRef,
    StopRecord,
    interrupted,
)
from kcover_ebpf.agent.reports.report_cache import ReportCache, inherited
from kcover_ebpf.api.fault_report import Ack, AckResult, FaultReport, PodRef
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.errors import ActionError
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind

STOP = StopRecord("i", "team/j", 50.0, (ContainerRef("u", "c"),), (ProcessRef(7, 8),))


def order(number: str, verb: Verb = Verb.STOP) -> Order:
    return Order(number, verb, {"a": "b"}, 1.0, 50.0)


def test_order_journal__the_next_agent_knows_what_was_done_and_what_is_stopped(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep/orders.json"
    journal = OrderJournal(path)
    journal.begin(order("1"), "team/j", STOP)
    ack = Ack("1", Verb.STOP, AckResult.DONE, 3, "text")
    journal.finish(ack)
    (stop,) = json.loads(path.read_text())["stops"]
    assert stop["held"] == [{"pid": 7, "startTicks": 8}], "an agent of another version reads it"
    again = OrderJournal(path)
    assert again.knows("1")
    assert not again.knows("2")
    assert again.stops == {"i": STOP}
    assert again.acks("team/j") == (ack,)
    assert again.acks("team/k") == ()
    assert again.unfinished == ()


def test_order_journal__an_order_that_was_begun_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    OrderJournal(path).begin(order("1", Verb.KILL), "team/j")
    again = OrderJournal(path)
    (left,) = again.unfinished
    assert again.knows("1")
    assert interrupted(left).result is AckResult.PARTIAL


def test_order_journal__a_second_stop_of_an_incident_takes_the_place_of_the_first(
    tmp_path: Path,
) -> None:
    journal = OrderJournal(tmp_path / "orders.json")
    journal.begin(order("1"), "team/j", STOP)
    later = StopRecord("i", "team/j", 99.0)
    journal.begin(order("2"), "team/j", later)
    assert journal.stops == {"i": later}
    journal.drop_stops({"i"})
    assert OrderJournal(tmp_path / "orders.json").stops == {}


def test_order_journal__the_book_stays_small(tmp_path: Path) -> None:
    journal = OrderJournal(tmp_path / "orders.json")
    for number in range(100):
        journal.begin(order(str(number)), "team/j")
    assert journal.knows("99")
    assert not journal.knows("3")


def test_order_journal__what_cannot_be_written_is_not_done(tmp_path: Path) -> None:
    journal = OrderJournal(tmp_path / "orders.json")
    (tmp_path / "orders.draft").mkdir()
    with pytest.raises(ActionError, match="cannot write"):
        journal.begin(order("1"), "team/j")
    assert not journal.knows("1")


def test_order_journal__what_is_over_is_remembered_without_a_disk(tmp_path: Path) -> None:
    journal = OrderJournal(tmp_path / "orders.json")
    journal.begin(order("1"), "team/j", STOP)
    (tmp_path / "orders.draft").mkdir()
    ack = Ack("1", Verb.STOP, AckResult.DONE, 3)
    with pytest.raises(ActionError, match="cannot write"):
        journal.finish(ack)
    with pytest.raises(ActionError, match="cannot write"):
        journal.drop_stops({"i"})
    with pytest.raises(ActionError, match="cannot write"):
        journal.note(order("2", Verb.RESUME), "team/j")
    assert journal.acks("team/j") == (ack,)
    assert journal.stops == {}
    assert journal.knows("2")
    (tmp_path / "orders.draft").rmdir()
    journal.begin(order("3"), "team/j")
    again = OrderJournal(tmp_path / "orders.json")
    assert again.stops == {}
    assert again.acks("team/j") == (ack,)


anything = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["done", "stops", "id", "verb"]), inner)
    ),
)


@settings(max_examples=25, deadline=None)
@given(anything)
def test_order_journal__a_book_that_makes_no_sense_is_put_aside(raw: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.json"
        path.write_text(json.dumps(raw))
        OrderJournal(path).begin(order("1"), "team/j")
        assert OrderJournal(path).knows("1")


def report(kind: VerdictKind, time_s: float = 100.0, pods: tuple[str, ...] = ("u",)) -> FaultReport:
    verdict = Verdict(kind, Cause.KILLED, since_s=time_s - 2.0, deadline_s=time_s + 30.0)
    refs = tuple(PodRef(f"p-{uid}", uid) for uid in pods)
    return FaultReport("n", time_s, 1, pods=refs, verdict=verdict)


def test_report_cache__a_report_survives(tmp_path: Path) -> None:
    cache = ReportCache(tmp_path / "reports")
    cache.save("team", "r", report(VerdictKind.CRASHED))
    cache.save("team", "s", report(VerdictKind.HUNG))
    cache.forget("team", "s")
    (left,) = ReportCache(tmp_path / "reports").load()
    assert (left.key, left.report) == (("team", "r"), report(VerdictKind.CRASHED))


def test_report_cache__the_spool_is_bounded_and_does_without_a_disk(tmp_path: Path) -> None:
    cache = ReportCache(tmp_path)
    for number in range(300):
        cache.save("team", str(number), report(VerdictKind.CRASHED))
    assert len(cache.load()) == 256
    broken = ReportCache(tmp_path / "file/reports")
    (tmp_path / "file").write_text("")
    broken.save("team", "r", report(VerdictKind.CRASHED))
    assert broken.failures == 1
    assert broken.load() == []


def test_report_cache__a_spooled_file_that_makes_no_sense_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    assert ReportCache(tmp_path).load() == []
    assert not list(tmp_path.iterdir())


INHERITED = {
    "a death that cannot be seen again": (report(VerdictKind.CRASHED), {"u"}, 130.0, True),
    "too old": (report(VerdictKind.CRASHED), {"u"}, 191.0, False),
    "from the future": (report(VerdictKind.CRASHED), {"u"}, 99.0, False),
    "of other pods": (report(VerdictKind.CRASHED), {"v"}, 130.0, False),
    "of some of the pods": (report(VerdictKind.CRASHED), {"u", "v"}, 130.0, False),
    "what can be seen again": (report(VerdictKind.HUNG), {"u"}, 130.0, False),
}


@pytest.mark.parametrize(("left", "pods", "now_s", "counts"), INHERITED.values(), ids=INHERITED)
def test_inherited(left: FaultReport, pods: set[str], now_s: float, counts: bool) -> None:
    found = inherited(left, frozenset(pods), now_s)
    assert (found is not None) is counts
    if found is not None:
        assert (found.since_s, found.deadline_s) == (98.0, 130.0)
