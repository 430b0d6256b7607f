"""Answers of any size: read as they come, they say what the same answer says when it is read as a whole."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from typing import Any

import pytest

from kcover_ebpf.agent.reader.program import encode
from kcover_ebpf.collectives.ras import RasError, RasReport, Reading, read
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.large_answer import LargeAnswer
from kcover_ebpf.confined.frames import pack
from testbed.driver.fake_ras_server import json_report

HOST_RANKS = 8


def streamed(text: str, pids: tuple[int, ...] = (), block: int = 4096) -> RasReport:
    answer = LargeAnswer(pids)
    raw = text.encode()
    for begin in range(0, len(raw), block):
        answer.feed(raw[begin : begin + block])
    return answer.finish()


def rank(number: int, launched: int, **status: Any) -> dict[str, Any]:
    return {
        "rank": number,
        "host": f"10.0.{number // HOST_RANKS // 250}.{number // HOST_RANKS % 250}",
        "pid": 100 + number % HOST_RANKS,
        "cuda_dev": number % HOST_RANKS,
        "collective_counts": {"AllReduce": launched, "AllGather": 4},
        "status": {"async_error": 0} | status,
    }


def missing(number: int) -> dict[str, Any]:
    return {
        "rank": number,
        "host": f"10.0.{number // HOST_RANKS // 250}.{number // HOST_RANKS % 250}",
        "pid": 100 + number % HOST_RANKS,
        "cuda_dev": number % HOST_RANKS,
        "status": {"unresponsive": True},
    }


def report(*comms: dict[str, Any]) -> str:
    return json.dumps({"nccl_version": "2.28.9", "communicators": comms}, indent=1)


def communicator(name: str, ranks: list[dict[str, Any]], *absent: int) -> dict[str, Any]:
    size = len(ranks) + len(absent)
    absent_ranks = [missing(number) for number in absent]
    return {"hash": name, "size": size, "ranks": ranks, "missing_ranks": absent_ranks}


def who(pairs: Any) -> set[tuple[str, int]]:
    return {(comm.name, one_rank.rank) for one_rank, comm in pairs}


def said(reading: Reading | None) -> tuple[Any, ...]:
    assert reading is not None
    named = (who(reading.behind), who(reading.missing), who(reading.failed), who(reading.odd))
    return reading.moving, reading.equal, reading.complete, *named


def random_text(seed: int) -> str:
    chance = random.Random(seed)
    size = chance.choice((8, 64, 300))
    late = set(chance.sample(range(size), chance.choice((0, 1, 3))))
    failed = set(chance.sample(range(size), chance.choice((0, 0, 1))))
    absent = set(chance.sample(range(size), chance.choice((0, 0, 2))))
    world = [
        rank(number, 9 if number in late else 10, async_error=2 if number in failed else 0)
        for number in range(size)
        if number not in absent
    ]
    # pairs: who is late in the world may wait for its neighbour
    pairs = [
        communicator(
            f"p{number}",
            [rank(number, 5), rank(number + 1, 4 if chance.random() < 0.05 else 5)],
        )
        for number in range(0, size, 2)
    ]
    return report(communicator("world", world, *sorted(absent)), *pairs)


@pytest.mark.parametrize("seed", range(30))
def test_large_answer__says_what_the_whole_answer_says(seed: int) -> None:
    text = random_text(seed)
    whole, parts = parse(text), streamed(text, block=777)
    assert said(read([parts, parts])) == said(read([whole, whole]))


def test_large_answer__movement_shows() -> None:
    first = report(communicator("world", [rank(number, 10) for number in range(500)]))
    last = report(communicator("world", [rank(number, 11) for number in range(500)]))
    reading = read([streamed(first), streamed(last)])
    assert reading is not None
    assert reading.moving


def test_large_answer__a_forgotten_comma_is_repaired() -> None:
    text = json_report([7, 7, 7, None], missing=(3,), drop_comma=True)
    assert said(read([streamed(text)] * 2)) == said(read([parse(text)] * 2))


def test_large_answer__processes_of_ours_are_kept() -> None:
    text = report(communicator("world", [rank(number, 10) for number in range(4000)]))
    found = streamed(text, (103,))
    assert found.concerns({103})
    assert found.process_count == 4000


def large_text(ranks: int, late: int) -> str:
    world = [rank(number, 9 if number == late else 10) for number in range(ranks)]
    nodes = [
        communicator(f"n{first}", [rank(number, 20) for number in range(first, first + HOST_RANKS)])
        for first in range(0, ranks, HOST_RANKS)
    ]
    columns = [
        communicator(f"c{column}", [rank(number, 7) for number in range(column, ranks, 32)])
        for column in range(32)
    ]
    return report(communicator("world", world), *nodes, *columns)


def test_large_answer__ten_thousand_ranks_in_little_memory_and_one_frame() -> None:
    text = large_text(10_240, 4711)
    answer = LargeAnswer((100,))
    raw = text.encode()
    assert len(raw) > 4 << 20
    tracemalloc.start()
    begun_s = time.process_time()
    for begin in range(0, len(raw), 65536):
        answer.feed(raw[begin : begin + 65536])
    found = answer.finish()
    used_s = time.process_time() - begun_s
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"{len(raw) >> 20} MiB: {used_s:.1f} s of CPU, {peak >> 20} MiB")
    assert peak < 32 << 20
    pack({"report": encode(found)})
    reading = read([found, found])
    assert reading is not None
    assert [(one_rank.rank, comm.name) for one_rank, comm in reading.behind] == [(4711, "world")]
    assert found.process_count == 10_240


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"x": [' + "[]," * 100_000, "not a RAS report"),
        ('{"communicators": [' + '{"hash": "' + "x" * 200_000, "not a RAS report"),
        ('{"communicators": [[' + "[" * 100_000, "no communicator"),
        ('{"communicators": [{"hash": ' + "[" * 100_000, "not a RAS report"),
        ('{"communicators": [{' + '"a":1,' * 100_000, "not a RAS report"),
        (
            '{"communicators": [{' + ",".join(f'"k{number}":1' for number in range(9000)),
            "more fields",
        ),
        ('{"communicators": [' + '{"hash":"a","size":1},' * 40_000, "more communicators"),
        ('{"communicators": [{"hash": "a", "size": 1, "ranks": [', "ends too early"),
        ('{"communicators": [{"hash": "\\u0041"}]}', "escaped characters"),
    ],
)
def test_large_answer__what_is_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(RasError, match=why):
        streamed(text)


def test_large_answer__ranks_that_have_nothing_in_common_are_refused() -> None:
    ranks = ",".join(
        f'{{"rank":{number},"host":"h{number}","pid":1,"collective_counts":{number}}}'
        for number in range(40_000)
    )
    with pytest.raises(RasError, match="nothing in common"):
        streamed('{"communicators": [{"hash": "a", "size": 1, "ranks": [' + ranks + "]}]}")
