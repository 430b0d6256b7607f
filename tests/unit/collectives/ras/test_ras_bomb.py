"""Whatever a rank of a job answers: memory and time of the sensor stay bounded, and it continues asking."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcover_ebpf.collectives.ras import RasError, client, watch
from kcover_ebpf.collectives.ras.answer import parse
from kcover_ebpf.collectives.ras.client import (
    REPORT_BYTES,
    RasPatience,
    RasPlace,
    ask,
    dead_peers,
    listen,
)
from kcover_ebpf.collectives.ras.watch import RasWatch
from kcover_ebpf.ids import Pid
from testbed.driver.fake_ras_server import FakeRasServer, json_report

ROOT = Path(__file__).resolve().parents[4]
QUICK = RasPatience(connect_s=20.0, collect_s=20.0, tries=1)
MOST_GROWTH_KIB = 30 * 1024

ASK = """
import sys
from kcover_ebpf.collectives.ras import RasError
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace, ask, listen
def memory(name):
    line = next(each for each in open("/proc/self/status") if each.startswith(name))
    return int(line.split()[1])
host, port, pid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
place = RasPlace((host, port), pid, {100: pid})
patience = RasPatience(connect_s=20.0, collect_s=20.0, tries=1)
before = memory("VmRSS")
try:
    print("believed", len(ask(place, patience).communicators[0].ranks))
except RasError as error:
    print("refused", error)
listen(place, patience, 0.5)
print(memory("VmHWM") - before)
"""


def filled(unit: str, head: str = "[", tail: str = "]") -> str:
    """A JSON object of as many bytes as are taken, of one unit again and again."""
    start, end = '{"communicators": [], "x": ' + head, f"{unit.rstrip(',')}{tail}}}"
    return start + unit * ((REPORT_BYTES - len(start) - len(end)) // len(unit)) + end


def honest() -> str:
    """As many ranks as fit, as NCCL writes them."""
    return json_report([7] * 3200)


def most_keys() -> str:
    """As many different keys and values as are let through."""
    pairs = ",".join(f'"k{number:06}":"v{number:06}"' for number in range(79_000))
    return '{"communicators": [], "x": {' + pairs + "}}"


def most_ranks() -> str:
    """As many short ranks as are let through."""
    ranks = ",".join(
        f'{{"rank":{number},"host":"h{number}","pid":{number + 1000},"collective_counts":{number + 1000}}}'
        for number in range(19_000)
    )
    return f'{{"communicators": [{{"hash": "a", "size": 1, "ranks": [{ranks}]}}]}}'


BOMBS: dict[str, Callable[[], str]] = {
    "the largest honest report": honest,
    "keys that are let through": most_keys,
    "ranks that are let through": most_ranks,
    "lists": lambda: filled("[],"),
    "objects": lambda: filled('{"a":1},'),
    "numbers": lambda: filled("1.5,"),
    "keys": lambda: filled('"":1,', "{", "}"),
    "one long string": lambda: filled("é", '"', '"'),
    "escapes": lambda: filled("\\ud83d\\ude00", '"', '"'),
    "nesting": lambda: filled("[", "", ""),
    "white space": lambda: "1" + " \n" * (REPORT_BYTES // 2 - 1),
    "white space after a number": lambda: '{"a": 1' + "\n" * (REPORT_BYTES - 10),
    "twelve MiB": lambda: '{"x": [' + "[]," * (4 << 20) + "[]]}",
    "lines of a text report": lambda: "summary" + "\nab" * (REPORT_BYTES // 3 - 4),
}


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeRasServer]]:
    servers: list[FakeRasServer] = []

    def start(*reports: str, **options: object) -> FakeRasServer:
        servers.append(FakeRasServer(list(reports), **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def place(server: FakeRasServer) -> RasPlace:
    me = Pid(os.getpid())
    return RasPlace(server.address, me, {100: me})


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_ras_bomb__memory_while_asking(bomb, serve):
    server = serve(bomb(), events=["x" * 4000] * 8192)
    words = [*map(str, server.address), str(os.getpid())]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *words], capture_output=True, text=True, cwd=ROOT, check=True
    )
    said, growth = done.stdout.splitlines()
    assert said.startswith("believed" if bomb is honest else "refused")
    print(f"grew by {int(growth)} KiB")
    assert int(growth) < MOST_GROWTH_KIB


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_parse__time_to_refuse(bomb):
    begun_s = time.process_time()
    text = bomb()[:REPORT_BYTES]
    try:
        parse(text)
    except RasError:
        assert bomb not in (honest, most_keys, most_ranks)
    assert time.process_time() - begun_s < 3.0


def test_parse__ranks_and_counts_in_a_text_report_take_no_square_of_the_time():
    pair = "  2 ranks have launched up to operation 5\n  Rank 3 -- GPU 3 managed by process 1 on node h\n"
    text = "Job summary\n#0-0 (27a079b828ff1a75) MISMATCH\n" + pair * 7000
    begun_s = time.process_time()
    assert len(parse(text).communicators[0].ranks) == 7001
    assert time.process_time() - begun_s < 2.0


@pytest.mark.parametrize(
    "change",
    [
        ('"size": 1', '"size": 1e999'),
        ('"size": 1', '"size": NaN'),
        ('"AllReduce": 7', '"AllReduce": 99999999999999999999999'),
        ('"AllReduce": 7', '"AllReduce": -7'),
        ('"pid": 100', '"pid": 1e400'),
        ('"AllReduce": 7', ", ".join(f'"Kind{number}": 7' for number in range(40))),
    ],
)
def test_parse__numbers_that_no_counter_has(change):
    text = json_report([7])
    assert text.replace(*change) != text
    with pytest.raises(RasError, match="not a RAS report"):
        parse(text.replace(*change))


def test_parse__names_are_cut():
    rank = parse(json_report([7]).replace("10.0.0.1", "h" * 10_000)).communicators[0].ranks[0]
    assert len(rank.host) == 64


def test_listen__events_without_end(serve):
    server = serve(json_report([7]), events=["x" * 1000] * 8192)
    reported = listen(place(server), QUICK, 20.0)
    assert 0 < sum(map(len, reported)) < 70_000


@pytest.mark.parametrize("peer", ['{"host": "h", "pid": 1e999}', "[" * 5000])
def test_dead_peers__an_event_that_is_none(peer):
    assert dead_peers(['{"event": "PEER_DEAD", "peer": ' + peer + "}"]) == []


def test_stream__a_server_that_sends_byte_by_byte_has_no_more_time_than_any_other(monkeypatch):
    class FakeDrip:
        def settimeout(self, seconds: float) -> None:
            assert seconds > 0

        def recv(self, _: int) -> bytes:
            time.sleep(0.01)
            return b"x"

    with pytest.raises(TimeoutError):
        client._Stream(FakeDrip()).line(time.monotonic() + 0.2)  # type: ignore[arg-type]


def test_ask__only_two_reports_are_read_at_a_time(serve):
    where = place(serve(json_report([7])))
    with client._reader(QUICK), client._reader(QUICK):
        hasty = RasPatience(connect_s=20.0, collect_s=0.05, tries=1)
        with pytest.raises(RasError, match="other jobs"):
            ask(where, hasty)
    assert ask(where, QUICK).whole


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), ValueError("unforeseen")])
def test_ras_watch__asking_continues_after_any_error(monkeypatch, error):
    asked = threading.Semaphore(0)

    def fail(*_: object) -> None:
        asked.release()
        raise error

    me = Pid(os.getpid())
    monkeypatch.setattr(watch, "find_places", lambda _: [RasPlace(("127.0.0.1", 1), me, {1: me})])
    monkeypatch.setattr(client, "ask", fail)
    monkeypatch.setattr(watch, "RAS_FIRST_PAUSES_S", (0.0,) * 5)
    asking = RasWatch()
    asking.tick(True, {})
    for _ in range(3):
        assert asked.acquire(timeout=60)
    reported = asking.tick(True, {})
    asking.close()
    assert {collectives.trouble for collectives in reported} == {
        f"query failed: {type(error).__name__}"
    }


def test_ras_watch__a_job_that_answers_slowly_has_one_thread(monkeypatch):
    answered = threading.Event()
    me = Pid(os.getpid())
    monkeypatch.setattr(watch, "find_places", lambda _: [RasPlace(("127.0.0.1", 1), me, {1: me})])
    monkeypatch.setattr(client, "ask", lambda *_: answered.wait(60))
    before = {other_thread for other_thread in threading.enumerate() if other_thread.name == "ras"}
    asking = RasWatch()
    for _ in range(5):
        asking.tick(True, {})
        asking.tick(False, {})
    (thread,) = {
        other_thread for other_thread in threading.enumerate() if other_thread.name == "ras"
    } - before
    answered.set()
    thread.join(60)
    asking.tick(True, {})
    assert asking._inquiry is not None
    asking.close()


def test_ask__a_report_larger_than_is_kept_is_read_as_it_comes(serve):
    ranks = 7000
    text = json_report([7] * ranks)
    assert len(text) > REPORT_BYTES
    report = ask(place(serve(text)), QUICK)
    assert report.process_count == ranks
    assert sum(rank.many for rank in report.communicators[0].ranks) == ranks
