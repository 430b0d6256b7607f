"""What NCCL Inspector's files show: a late rank, a link that became slow, a slow group; and what they do not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.collectives.inspector.findings import slow_in
from kcover_ebpf.collectives.inspector.records import run_of, runs
from kcover_ebpf.facts.inspector import SlowCollective, SlowKind
from tests.unit.collectives.inspector import inspector_files as files
from tests.unit.collectives.inspector.inspector_files import TRANSFER_S, even, group, late, line


def found(*groups: Iterable[tuple[int, str]]) -> tuple[SlowCollective, ...]:
    lines = [text.encode() for _, text in chain(*groups)]
    return slow_in(run for run in runs(lines) if run is not None)


def test_slow_in__the_rank_that_comes_last_is_named_with_the_wait_that_it_costs() -> None:
    (slow,) = found(group("0xa", range(8), late(5, 0.030)))
    assert (slow.kind, slow.members[0].rank, slow.members[0].host) == (
        SlowKind.LATE_RANK,
        5,
        "node-1",
    )
    assert slow.lasts_s == pytest.approx(0.030, rel=0.01)
    assert slow.usual_s == pytest.approx(TRANSFER_S, rel=0.01)


def test_slow_in__a_late_rank_of_a_small_group_has_its_number_in_the_job() -> None:
    whole = group("0xa", range(8), even)
    (slow,) = found(whole, group("0xb", range(4, 8), late(2, 0.030)))
    assert (slow.members[0].rank, slow.members[0].job_rank) == (2, 6)


@pytest.mark.parametrize(
    "duration",
    [
        pytest.param(even, id="all-alike"),
        pytest.param(late(3, 0.0005), id="half-a-millisecond"),
        pytest.param(lambda number, at: TRANSFER_S + 0.01 * (at != number % 4), id="in-turns"),
        pytest.param(lambda number, _: TRANSFER_S * (1 + number % 2), id="every-other-is-slow"),
    ],
)
def test_slow_in__what_is_usual_is_no_finding(duration: files.Duration) -> None:
    assert found(group("0xa", range(4), duration)) == ()


def test_slow_in__transfers_that_take_longer_than_they_did_show_a_link() -> None:
    def duration(number: int, at: int) -> float:
        return even(number, at) * (2.0 if number >= 35 else 1.0)

    (slow,) = found(group("0xa", range(4), duration))
    assert slow.kind is SlowKind.SLOWER_THAN_BEFORE
    assert slow.lasts_s == pytest.approx(2 * slow.usual_s, rel=0.02)


def test_slow_in__a_group_that_is_slower_than_its_equals_names_the_host_that_only_it_is_on() -> (
    None
):
    groups = [group(f"0x{number}", range(4 * number, 4 * number + 4), even) for number in range(3)]
    slow_group = group("0x9", range(12, 16), lambda number, at: 1.5 * even(number, at))
    (slow,) = found(*groups, slow_group)
    assert (slow.kind, slow.communicator, slow.hosts) == (
        SlowKind.SLOW_GROUP,
        "0x9",
        ("node-3",),
    )


def test_slow_in__an_operation_of_which_a_rank_was_not_read_says_nothing() -> None:
    lines = [text.encode() for rank, text in group("0xa", range(4), late(3, 0.030)) if rank != 3]
    assert slow_in(run for run in runs(lines) if run is not None) == ()


def test_slow_in__few_operations_say_nothing() -> None:
    assert found(group("0xa", range(4), late(3, 0.030), count=19)) == ()
    assert found(group("0xa", range(4), late(3, 0.030), count=20)) != ()


def test_run_of__the_record_of_the_documentation() -> None:
    record = {
        "header": {"id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "profiler_plugin",
            "dump_timestamp_us": 1748030377748202,
            "hostname": "example-hostname",
            "pid": 1639453,
        },
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": 1407,
            "coll_msg_size_bytes": 17179869184,
            "coll_exec_time_us": 61974,
            "coll_algobw_gbs": 277.210914,
            "coll_busbw_gbs": 485.119099,
        },
    }
    run = run_of(json.dumps(record).encode())
    assert run is not None
    assert (run.communicator, run.rank, run.rank_count) == ("0x7f8c496ae9f661", 2, 8)
    assert (run.host, run.pid, run.kind, run.number) == (
        "example-hostname",
        1639453,
        "AllReduce",
        1407,
    )
    assert run.duration_s == 0.061974


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"null",
        b"[" * 100_000,
        json.dumps(line("0xa", 8, 8, "h", 1, 1, 0.1)).encode(),
        json.dumps(line("0xa", 0, 8, "h", 1, -1, 0.1)).encode(),
        json.dumps(line("", 0, 8, "h", 1, 1, 0.1)).encode(),
        json.dumps(line("0xa", 0, 8, "h", 1, 1, 0.1, coll_msg_size_bytes=1.5)).encode(),
        json.dumps(line("0xa", 0, 8, "h", 1, 1, 0.1, coll_exec_time_us=True)).encode(),
        json.dumps(line("0xa", 0, 1 << 40, "h", 1, 1, 0.1)).encode(),
    ],
)
def test_run_of__what_is_no_record_is_none(raw: bytes) -> None:
    assert run_of(raw) is None


@given(st.binary())
def test_run_of__of_any_bytes_only_a_record_is_one(raw: bytes) -> None:
    assert run_of(raw) is None, "no random bytes are one"
