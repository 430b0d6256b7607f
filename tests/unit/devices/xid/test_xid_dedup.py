"""The Xid ladder: one fact an error, whatever the order in which the rungs see it."""

from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.devices.xid.xid_dedup import XidDedup
from kcover_ebpf.facts.devices import Rung, XidReported
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import XID_FORGET_NS, XID_HOLD_NS, XID_UNCONFIRMED_NS

GPU = "0000:5d:00.0"
MS = 1_000_000


def xid(rung: Rung, at_ms: int = 0, number: int = 79, text: str = "pid=7, name=x, lost", **more):
    confirmed = rung is not Rung.CONSOLE
    return XidReported(at_ms * MS, GPU, number, text, rung, confirmed, **more)


def line(at_ms: int = 0, **more):
    return xid(Rung.CONSOLE, at_ms, text="lost", pid=Pid(7), process="x", gpu_instance=3, **more)


def late(dedup: XidDedup, now_ns: int) -> list[XidReported]:
    """As of two readings at the same moment."""
    return dedup.overdue(now_ns) + dedup.overdue(now_ns)


def test_xid_dedup__line_then_report_is_one_fact_with_all_that_is_known():
    ladder = XidDedup(Rung.KPROBE)
    assert ladder.observe(line()) is None
    reported = ladder.observe(xid(Rung.KPROBE, 1, text="%s"))
    assert reported == XidReported(0, GPU, 79, "lost", Rung.KPROBE, True, Pid(7), "x", 3)
    assert ladder.observe(xid(Rung.KMSG, 2)) is None
    assert late(ladder, 10 * XID_HOLD_NS) == []


def test_xid_dedup__report_without_a_line_is_reported_at_once():
    ladder = XidDedup(Rung.KPROBE)
    reported = ladder.observe(xid(Rung.KPROBE))
    assert reported is not None
    assert (reported.pid, reported.process, reported.text) == (7, "x", "lost")


def test_xid_dedup__what_the_best_rung_missed_is_reported_after_a_pause():
    ladder = XidDedup(Rung.KPROBE)
    assert ladder.observe(line()) is None
    assert ladder.observe(xid(Rung.KMSG, 1)) is None
    assert late(ladder, XID_HOLD_NS - 1) == []
    (reported,) = late(ladder, XID_HOLD_NS + MS)
    assert reported.confirmed
    assert reported.gpu_instance == 3
    assert late(ladder, 2 * XID_HOLD_NS) == []


def test_xid_dedup__a_reader_that_is_behind_reports_nothing_twice():
    """The log is read as of now, the events of the probes in their order: those may be seconds old."""
    ladder = XidDedup(Rung.KPROBE)
    ladder.overdue(9_000 * MS)
    assert ladder.observe(xid(Rung.KMSG, 10_000)) is None
    assert ladder.overdue(16_000 * MS) == []
    reported = ladder.observe(xid(Rung.KPROBE, 9_500))
    assert reported is not None
    assert reported.rung is Rung.KPROBE
    assert late(ladder, 22_000 * MS) == []


def test_xid_dedup__a_forged_line_is_reported_as_such_and_hides_nothing():
    ladder = XidDedup(Rung.KPROBE)
    ladder.observe(line())
    assert late(ladder, XID_UNCONFIRMED_NS - 1) == []
    (reported,) = late(ladder, XID_UNCONFIRMED_NS)
    assert not reported.confirmed
    assert ladder.observe(xid(Rung.KPROBE, 1100)) is not None
    assert ladder.observe(xid(Rung.KPROBE, 1101)) is not None


def test_xid_dedup__a_line_is_not_reported_as_doubtful_while_its_confirmation_waits():
    """Errors of a switch have no probe: the console says them, and the log a moment later."""
    ladder = XidDedup(Rung.KPROBE)
    assert ladder.observe(line()) is None
    assert ladder.observe(xid(Rung.KMSG, 66)) is None
    assert late(ladder, XID_HOLD_NS + 30 * MS) == []
    (reported,) = late(ladder, XID_HOLD_NS + 66 * MS)
    assert reported.confirmed
    assert late(ladder, 10 * XID_HOLD_NS) == []


def test_xid_dedup__other_words_are_another_error():
    ladder = XidDedup(Rung.KPROBE)
    ladder.observe(line())
    reported = ladder.observe(xid(Rung.KPROBE, 1, text="Timeout after 6s"))
    assert reported is not None
    assert reported.text == "Timeout after 6s"
    assert reported.gpu_instance is None


def test_xid_dedup__counts_start_again_after_a_while():
    ladder = XidDedup(Rung.KMSG)
    assert ladder.observe(xid(Rung.KMSG)) is not None
    ladder.best = Rung.KPROBE
    later = XID_FORGET_NS // MS + 1
    assert ladder.observe(xid(Rung.KPROBE, later)) is not None


def test_xid_dedup__without_a_better_rung_the_console_is_reported_unconfirmed():
    reported = XidDedup(Rung.CONSOLE).observe(line())
    assert reported is not None
    assert not reported.confirmed


@given(
    st.integers(1, 7),
    st.sets(st.sampled_from([Rung.CONSOLE, Rung.KMSG]), max_size=2),
    st.sampled_from([Rung.KPROBE, Rung.TRACEPOINT, Rung.KMSG]),
    st.data(),
)
def test_xid_dedup__any_interleaving_reports_each_error_once(count, lower, best, data):
    """Every rung sees every error in order; how the rungs' reports mix is free."""
    rungs = [best, *sorted(lower - {best}, key=lambda rung: rung.value)]
    waiting = dict.fromkeys(rungs, count)
    ladder, reported, now_ms = XidDedup(best), 0, 0
    while any(waiting.values()):
        rung = data.draw(st.sampled_from([r for r in rungs if waiting[r]]))
        waiting[rung] -= 1
        now_ms += data.draw(st.integers(0, 20))
        report = line(now_ms) if rung is Rung.CONSOLE else xid(rung, now_ms)
        reported += ladder.observe(report) is not None
    rest = late(ladder, now_ms * MS + XID_HOLD_NS)
    assert reported + sum(report.confirmed for report in rest) == count
