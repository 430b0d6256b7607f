"""Dumps of real recorders, of both forms; and what of a dump is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.collectives.recorder import recorder_dump
from kcover_ebpf.collectives.recorder.recorder_dump import DumpError, read, record_of
from kcover_ebpf.diagnosis.evidence.recorders import compare
from kcover_ebpf.ids import Pid
from testbed.driver.recorder_dumps import call, dump, pickled, steps

REAL = Path(__file__).parents[3] / "recorder_dumps"


def kept(calls: list[dict[str, Any]], **groups: Any) -> Any:
    return record_of(read(pickled(dump(calls, **groups))), Pid(100), 0)


def test_read__a_real_pickle_and_the_real_json_of_the_same_moment_say_the_same() -> None:
    pickle, plain = (read((REAL / f"behind-1.{form}").read_bytes()) for form in ("pickle", "json"))
    assert pickle.version == plain.version == "2.10"
    assert pickle.groups == plain.groups
    assert pickle.status == plain.status
    assert [dumped_call.call.sequence for dumped_call in pickle.calls] == list(range(1, 15))
    assert [dumped_call.call.sequence for dumped_call in plain.calls] == list(range(1, 15))
    assert pickle.calls[-1].call.place
    assert plain.calls[-1].call.place == "", "PyTorch's JSON has no frames"


def test_read__the_place_is_the_programs_own() -> None:
    found = read((REAL / "behind-1.pickle").read_bytes()).calls[-1]
    assert found.call.place == "/jobs/record.py:40 (average)"
    assert (found.call.operation, found.call.shape) == ("all_reduce", "16x4 Float")


def test_record_of__real_recorders_name_the_rank_that_called_something_else() -> None:
    files = {rank: REAL / f"skipped-{rank}.pickle" for rank in range(4)}
    records = [
        record_of(read(file.read_bytes()), Pid(100 + rank), rank) for rank, file in files.items()
    ]
    found = compare(records, 4)
    assert ([record.rank for record in found.named], found.mismatch) == ([2], True)
    assert (
        "ranks 0, 1, 3 called all_reduce [16x4 Float] at /jobs/record.py:40 (average)"
        in found.texts[0]
    )
    assert "rank 2 called all_gather [16x4 Float] at /jobs/record.py:44 (gather)" in found.texts[1]


def test_record_of__what_has_completed_is_not_pending() -> None:
    assert kept(steps(5)).groups[0].pending == ()
    (group,) = kept(steps(5, ends="all_gather")).groups
    assert [(item.sequence, item.operation) for item in group.pending] == [(6, "all_gather")]
    assert group.enqueued == 6


def test_record_of__a_part_of_a_coalesced_call_is_not_pending_once_a_later_call_has_completed() -> (
    None
):
    calls = [call(1, state="scheduled"), call(2), call(3, state="scheduled")]
    assert [item.sequence for item in kept(calls).groups[0].pending] == [3]


def test_record_of__a_group_that_was_never_called_has_number_0_if_the_ring_holds_everything() -> (
    None
):
    groups = {"9": ("pair", "[0, 1]")}
    found = {group.name: group for group in kept(steps(3), groups=groups).groups}
    assert (found["9"].enqueued, found["9"].ranks) == (0, (0, 1))
    later = [call(number, record=number + 50) for number in (1, 2)]
    found = {group.name: group for group in kept(later, groups=groups).groups}
    assert found["9"].enqueued is None, "the ring is full: earlier calls are gone"


def test_record_of__the_other_end_of_a_message_is_a_rank_of_the_job() -> None:
    calls = [
        call(1, "send 0->1", message=True, group="9", state="completed", record=0),
        call(2, "recv 0<-1", message=True, group="9", state="scheduled", record=1),
    ]
    found = {group.name: group for group in kept(calls, groups={"9": ("pp", "[3, 7]")}).groups}
    assert [(message.operation, message.peer) for message in found["9"].messages] == [
        ("recv 0<-1", 7)
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"{", "neither a pickle nor JSON"),
        (b"[" * 100_000, "not plain data|neither"),
        (b'{"a":' * 100_000, "neither a pickle nor JSON"),
        (b"{}", "no version"),
        (pickled([1, 2]), "no version"),
        (b"cos\nsystem\n(S'true'\ntR.", "import or call"),
    ],
)
def test_read__what_is_no_dump_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DumpError, match=reason):
        read(data)


def test_read__texts_of_a_rank_are_one_line() -> None:
    entry = call(1)
    entry["profiling_name"] = "nccl:all\n\x1b[31mreduce"
    entry["frames"] = [{"name": "f\n", "filename": "/a\nb.py", "line": 3}]
    found = read(pickled(dump([entry]))).calls[0].call
    assert found.operation == "all??[31mreduce"
    assert found.place == "/a?b.py:3 (f?)"


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(call(1))), JUNK, st.sampled_from(sorted(dump([]))), JUNK)
def test_record_of__any_value_in_any_place_gives_a_dump_or_a_reason(
    key: str, value: object, top: str, other: object
) -> None:
    entries = {"entries": [call(1) | {key: value}]}
    for whole in (dump([call(1)]) | entries, dump([call(1)]) | {top: other}):
        data = json.dumps(whole).encode()
        try:
            found = read(data)
        except DumpError:
            continue
        last = record_of(found, Pid(1), 0).last
        assert last == (found.calls[-1].call if found.calls else None)


def test_read__a_list_that_holds_itself_is_no_endless_walk() -> None:
    entry = call(1)
    sizes: list[Any] = []
    sizes.append(sizes)
    entry["input_sizes"] = entry["frames"] = sizes
    assert read(pickled(dump([entry]))).calls[0].call.place == ""


BOMBS = {
    "lists": b"[],",
    "dictionaries": b"{},",
    "nested lists": b"[[]],",
    "numbers": b"1,",
}


@pytest.mark.parametrize("part", BOMBS.values(), ids=BOMBS)
def test_read__json_of_more_parts_than_a_recorder_has_is_refused_before_it_is_parsed(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b'{"version":"2.10","x":['
    data = head + part * ((2 << 20) // len(part) - 20) + b"0]}"
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(DumpError, match="neither a pickle nor JSON"):
        read(data)


def test_read__what_all_calls_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [[(1 << 62) + 3] * 16] * 256
    frames = [{"filename": "/a.py", "line": 1, "name": "f"}] * 128
    entries = [
        {
            "collective_seq_id": number,
            "state": "scheduled",
            "profiling_name": "nccl:x",
            "process_group": ["0", ""],
            "input_sizes": tensors,
            "input_dtypes": ["t" * 100] * 256,
            "frames": frames,
        }
        for number in range(1000)
    ]
    read_texts: list[object] = []
    text = recorder_dump._text

    def counted(raw: object, limit: int) -> str:
        read_texts.append(raw)
        return text(raw, limit)

    monkeypatch.setattr(recorder_dump, "_text", counted)
    found = recorder_dump.read(pickled(dump(entries * 20)))
    assert len(found.calls) == 2100
    assert len(read_texts) < 10 * 1000


def test_record_of__many_groups_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [call(1, group=str(number)) for number in range(2000)]
    found = read(pickled(dump(calls)))
    compared: list[str] = []
    whole = recorder_dump._group

    def group(dump: Any, name: str, made: Any, whole_ring: bool) -> Any:
        compared.extend(name for _ in made)
        return whole(dump, name, made, whole_ring)

    monkeypatch.setattr(recorder_dump, "_group", group)
    record_of(found, Pid(1), 0)
    assert len(compared) == 2000
