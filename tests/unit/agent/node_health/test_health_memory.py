"""From rounds of inspection to the health of a node: what counts as clean, what is not mended yet, what is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.agent.node_health.health_memory import Round, after_round, mended
from kcover_ebpf.api.codec import decode, encode
from kcover_ebpf.api.node_health import NodeHealth
from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.result import PartResult

GPU = "0000:5d:00.0"
P, U, W, F = Result.PASS, Result.UNKNOWN, Result.WARN, Result.FAIL
DAY_S = 86400.0


def history(
    *rounds: list[PartResult], boots: str = "", devices: list[list[PartResult]] | None = None
) -> NodeHealth:
    """The health after these rounds, 100 s apart from 1000 on; `boots`: a letter for the boot of each."""
    health = None
    for index, checks in enumerate(rounds):
        boot = boots[index] if boots else "a"
        seen = devices[index] if devices else []
        done = Round(1000.0 + 100 * index, boot, checks, seen)
        health = after_round("n1", health, done, 90)
    assert health is not None
    return health


T = TypeVar("T")


def check(result: Result, text: str = "x", name: str = "plugin/p") -> PartResult:
    return PartResult(name, result, (text,), "mend it")


def only(parts: Sequence[T]) -> T:
    (part,) = parts
    return part


def test_after_round__rounds_of_the_same_result_are_counted_from_the_first() -> None:
    part = only(history([check(P)], [check(F)], [check(F)]).checks)
    assert (part.result, part.since_s, part.rounds, part.failed_s) == (F, 1100.0, 2, 1200.0)
    assert part.unmended


def test_after_round__clean_rounds_begin_anew_after_a_failure() -> None:
    health = history([check(P)], [check(F)], [check(P)], [check(W)])
    assert (health.clean_rounds, health.clean_since_s) == (2, 1200.0)
    assert history([check(P)], [check(F)]).clean_rounds == 0
    assert history([check(P)], [check(F)]).clean_since_s is None


def test_after_round__what_failed_and_cannot_be_observed_is_not_clean() -> None:
    health = history([check(F)], [check(U)], [check(U)])
    assert only(health.checks).unmended
    assert (health.result, health.clean_rounds) == (U, 0)
    assert history([check(F)], [check(U)], [check(P)]).clean_rounds == 1


def test_after_round__a_round_that_observed_nothing_is_not_clean() -> None:
    assert history([check(U)]).clean_rounds == 0
    assert history([]).clean_rounds == 0


def test_after_round__a_reboot_ends_the_count_and_mends_nothing() -> None:
    assert history([check(P)], [check(P)], [check(P)], boots="aab").clean_rounds == 1
    assert history([check(F)], [check(U)], boots="ab").clean_rounds == 0


def test_after_round__a_check_that_is_no_longer_run_is_forgotten() -> None:
    other = check(P, name="memory")
    assert [part.name for part in history([check(F), other], [other]).checks] == ["memory"]


def test_after_round__announced_faults_are_part_of_the_health() -> None:
    done = Round(1.0, "a", [check(P)], unfit=[f"{GPU} xid_79: fell off"])
    health = after_round("n1", None, done, 90)
    assert (health.result, health.clean_rounds) == (F, 0)
    assert health.reason == f"{GPU} xid_79: fell off"


def announced(*times_s: float, fault: str = "xid_94", rounds: int = 2) -> NodeHealth:
    """After rounds in which this fault of a GPU was announced at these times, once a round."""
    health: NodeHealth | None = None
    for at_s in times_s:
        for later_s in range(rounds):
            done = Round(at_s + 9 + later_s, "a", [check(P)], faults=[(GPU, fault, at_s)])
            health = after_round("n1", health, done, 90)
    assert health is not None
    return health


def test_after_round__a_fault_that_recurs_is_a_warning_whatever_mended_it() -> None:
    twice = announced(1000.0, 1000.0 + DAY_S)
    assert (twice.result, only(twice.faults).count) == (P, 2)
    thrice = announced(1000.0, 1000.0 + DAY_S, 1000.0 + 2 * DAY_S)
    assert (thrice.result, only(thrice.faults).count) == (W, 3)
    assert thrice.reason == f"faults: {GPU} xid_94: 3 in the last week, the newest 0.0 h ago"
    assert thrice.clean_rounds > 0, "a warning cordons no node"
    assert decode(NodeHealth, encode(thrice)) == thrice


def test_after_round__a_fault_is_forgotten_after_a_week_and_counted_once_a_minute() -> None:
    assert only(announced(1000.0, 1030.0, 1059.0).faults).count == 1
    aged = after_round("n1", announced(1000.0), Round(1000.0 + 8 * DAY_S, "b", [check(P)]), 90)
    assert aged.faults == ()
    assert [part.name for part in aged.checks] == ["plugin/p"]


def test_after_round__the_reason_has_the_worst_first() -> None:
    health = history([check(W, "slow", "links"), check(F, "dead", "nvml"), check(P)])
    assert health.reason == "nvml: dead; links: slow"
    assert history([check(P)]).reason is None


def test_mended__a_device_is_mended_once_it_failed_and_works() -> None:
    def seen(result: Result) -> list[PartResult]:
        return [PartResult(GPU, result, ("y",), kind="gpu")]

    rounds = [[check(P)]] * 3
    broken = history(*rounds, devices=[seen(P), seen(F), seen(U)])
    assert mended(broken) == {}
    assert broken.gpus == "0/1"
    whole = history(*rounds, devices=[seen(P), seen(F), seen(P)])
    assert mended(whole) == {GPU: 1100.0}
    assert whole.gpus == "1/1"
    assert mended(history(*rounds, devices=[seen(P)] * 3)) == {}


@pytest.mark.parametrize("kind", ["gpu", "nic"])
def test_after_round__a_device_that_leaves_the_bus_is_unknown_for_a_week(kind: str) -> None:
    there = [PartResult(GPU, P, ("y",), kind=kind)]
    gone = history([check(P)], [check(P)], devices=[there, []])
    part = only(gone.devices)
    assert (part.name, part.result, part.kind) == (GPU, U, kind)
    later = after_round("n1", gone, Round(1100.0 + 6 * DAY_S, "a", [check(P)]), 90)
    assert only(later.devices).rounds == 2
    latest = after_round("n1", later, Round(1100.0 + 7 * DAY_S, "a", [check(P)]), 90)
    assert latest.devices == ()


def test_after_round__what_a_check_prints_is_cut_and_commands_no_terminal() -> None:
    lines = ("\x1b[2J" + "a" * 999,) * 9
    checks = [PartResult(f"plugin/{i}", F if i == 99 else P, lines, "b" * 999) for i in range(100)]
    seen = [PartResult(f"0000:{i:02x}:00.0", P, lines, kind="nic") for i in range(200)]
    health = after_round("n1", None, Round(1.0, "a", checks, seen), 90)
    assert (len(health.checks), len(health.devices)) == (64, 128)
    assert health.checks[0].name == "plugin/99", "the worst is kept"
    for part in (*health.checks, *health.devices):
        assert len(part.evidence) == 4
        assert {len(text) for text in part.evidence} == {256}
        assert "\x1b" not in "".join(part.evidence)
    assert len(health.reason or "") <= 256
    assert len(json.dumps(encode(health))) < 400_000


@given(st.lists(st.tuples(st.sampled_from(Result), st.sampled_from("ab")), min_size=1, max_size=12))
def test_after_round__clean_rounds_are_rounds_of_this_boot_in_which_nothing_failed(
    rounds: list[tuple[Result, str]],
) -> None:
    health = history(
        *([check(result)] for result, _ in rounds), boots="".join(x for _, x in rounds)
    )
    tail = rounds[len(rounds) - health.clean_rounds :]
    assert {boot for _, boot in tail} <= {rounds[-1][1]}
    assert F not in {result for result, _ in tail}
    assert (health.clean_since_s is None) == (health.clean_rounds == 0)
    assert decode(NodeHealth, encode(health)) == health
