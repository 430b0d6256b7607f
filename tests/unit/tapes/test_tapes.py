"""Tapes are written whatever happens to the file, read whatever is in it, and judged as the job was."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.cli import main
from kcover_ebpf.errors import UsageError
from kcover_ebpf.facts.devices import FabricErrors
from kcover_ebpf.facts.host import CodeSeen, Module
from kcover_ebpf.facts.kernel import ProcessExit, Tick
from kcover_ebpf.ids import NS, Pid, Tid
from kcover_ebpf.run.replay import Replay
from kcover_ebpf.run.sinks import Announcer, Sink
from kcover_ebpf.settings import Act
from kcover_ebpf.tapes.entries import MOST_LINE_BYTES, SCHEMA, Ask, End, Hold, Judge, Look, Start
from kcover_ebpf.tapes.reader import TapeReader
from kcover_ebpf.tapes.writer import TapeWriter
from tests.unit.support.recorded_stage import HEADER, SCRIPTS, TAPES, record, reported
from tests.unit.support.scripted_job import Stage

HEAD = json.dumps({"schema": SCHEMA, "version": "9", "machine": "x86_64", "policy": {}}).encode()
HEAD = HEAD[:-1] + b',"act":"observe","names":false}\n'
TICK = b'{"fact":"tick","boottime_ns":5,"period_ns":1,"lost_count":0,"late":false}\n'


def reader(data: bytes) -> TapeReader:
    return TapeReader(BufferedReader(BytesIO(data)), "it")


def play(data: bytes) -> None:
    Replay(reader(data)).play(Announcer((), wants_waits=False))


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def replayed(path: Path, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["replay", str(path), "-o", "json"]) == 0
    return lines(capfd)


def as_reported(event: dict[str, Any]) -> dict[str, Any]:
    culprit = event["culprit"]
    return {
        "verdict": event["verdict"],
        "cause": event["cause"],
        "rank": culprit and culprit["rank"],
        "since": round(event["since"], 3),
        "time": round(event["time"], 3),
    }


# ---- judged again


@pytest.mark.parametrize("name", SCRIPTS)
def test_main__a_kept_tape_gives_the_verdicts_that_were_given(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = TAPES / f"{name}.tape.gz"
    assert path.stat().st_size < 50_000
    events = replayed(path, capfd)
    expected = json.loads((TAPES / "expected.json").read_text())[name]
    assert [as_reported(event) for event in events if event["event"] == "verdict"] == expected
    assert [events[0]["event"], events[-1]["event"]] == ["start", "end"]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_main__what_is_recorded_now_is_judged_alike(
    suffix: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a{suffix}"
    stage = record(SCRIPTS["locked"], path)
    events = replayed(path, capfd)
    verdicts = [as_reported(event) for event in events if event["event"] == "verdict"]
    assert verdicts == [reported(verdict) for verdict in stage.verdicts]
    assert verdicts[-1]["rank"] == 1
    assert path.stat().st_mode & 0o077 == 0, "a tape is its owner's"
    assert path.read_bytes().startswith(b"\x1f\x8b") is suffix.endswith(".gz")


def _erring_port(stage: Stage) -> None:
    stage.run(30)
    for proc in stage.procs.values():
        stage.become(proc, "futex")
    for _ in range(10):
        counters = (("packet_seq_err", 20),)
        for pid in map(Pid, stage.procs):
            stage.feed(FabricErrors(stage.now_ns, pid, "mlx5_0/1", "0000:5d:00.0", counters))
        stage.run(5)


def test_main__errors_of_an_rdma_port_are_in_a_tape_and_explain_its_verdict(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stage = record(_erring_port, tmp_path / "a")
    verdicts = [event for event in replayed(tmp_path / "a", capfd) if event["event"] == "verdict"]
    assert list(map(as_reported, verdicts)) == list(map(reported, stage.verdicts))
    texts = [evidence["text"] for evidence in verdicts[-1]["evidence"]]
    assert any("RDMA port mlx5_0/1 (0000:5d:00.0) grow: packet_seq_err" in text for text in texts)


def test_main__what_would_be_done_is_reported_and_the_end_of_the_job_is_no_news(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a"
    record(SCRIPTS["stopped"], path, replace(HEADER, act=Act.SHUTDOWN))
    events = replayed(path, capfd)
    kinds = [event["event"] for event in events]
    assert [kinds[0], kinds[-1]] == ["start", "end"]
    assert [event["act"] for event in events if event["event"] == "action"][-1] == "shutdown"
    assert all(
        "nothing was done" in event["text"] for event in events if event["event"] == "action"
    )
    times = [event["time"] for event in events]
    assert times == sorted(times), "it has the time of the tape"


def test_main__a_tape_is_shown_to_people_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(TAPES / "stopped.tape.gz")]) == 0
    assert "HUNG  rank 2 (pid 102) stopped" in capfd.readouterr().out


def test_tape_writer__each_start_of_the_job_is_judged_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "a"
    writer = TapeWriter(path, HEADER, pytest.fail)
    exits = ProcessExit(5 * NS, Pid(1), 1, 0, False, "x")
    for restart in range(2):
        writer.start(Start(7.0, 2.0, restart, pid=1))
        writer.on_fact(exits)
        writer.on_judge(2.0)
    writer.close()
    starts, found = [], []
    memories: set[int] = set()

    class FakeReplaySink(Sink):
        def on_start(self, fields: dict[str, Any]) -> None:
            starts.append((fields["restart"], played.now_s()))
            memories.add(id(played.job.pace.memory))

        def on_fact(self, fact: object) -> None:
            found.append((fact, played.now_s()))

    with path.open("rb") as file:
        played = Replay(TapeReader(file, "it"))
        played.play(Announcer([FakeReplaySink()], wants_waits=False))
    assert starts == [(0, 7.0), (1, 7.0)]
    assert len(memories) == 1, "the memory of the job stays, as in a run"
    assert [at for _, at in found] == [7.0, 7.0]


# ---- written


def test_tape_writer__everything_but_names_is_written_unless_they_are_wanted(
    tmp_path: Path,
) -> None:
    tick, leaving = Tick(1, 2, 0, False), ProcessExit(3, Pid(1), 0, 9, False, "acme")
    entries = {}
    for names in (False, True):
        writer = TapeWriter(tmp_path / "a", replace(HEADER, names=names, job="acme"), pytest.fail)
        writer.start(Start(1.0, 0.5, unobserved=("a",)))
        writer.on_fact(tick)
        writer.on_reading()
        writer.on_ask()
        writer.on_fact(leaving)
        writer.on_judge(0.5)
        writer.on_hold()
        writer.end(End(2.0, "exited", 3, -9))
        writer.close()
        writer.on_fact(tick)  # after its end nothing is written, and nothing happens
        writer.close()
        entries[names] = list(reader((tmp_path / "a").read_bytes()))
    start, end = Start(1.0, 0.5, unobserved=("a",)), End(2.0, "exited", 3, -9)
    assert entries[True] == [start, tick, Look(), Ask(), leaving, Judge(0.5), Hold(), end]
    assert entries[False][:4] == entries[True][:4]
    assert entries[False][4] != leaving
    assert "acme" not in repr(entries[False])


def test_tape_reader__a_killed_recorder_leaves_what_it_saw_until_then(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    writer = TapeWriter(path, HEADER, pytest.fail)
    for at in range(25):
        writer.on_fact(Tick(at, 1, 0, False))
        writer.on_judge(0.0)
    tape = iter(reader(path.read_bytes()))
    assert len([next(tape) for _ in range(2 * 20)]) == 2 * 20
    with pytest.raises(UsageError, match="truncated"):
        next(tape)
    writer.close()
    assert len(list(reader(path.read_bytes()))) == 2 * 25


def test_tape_writer__a_full_disk_ends_the_recording_and_says_so_once() -> None:
    said: list[str] = []
    writer = TapeWriter(Path("/dev/full"), replace(HEADER), said.append)
    for at in range(5000):
        writer.on_fact(Tick(at, 1, 0, False))
        writer.on_judge(0.0)
    writer.end(End(2.0, "exited", 3))
    writer.close()
    assert said == ["No space left on device"]


@pytest.mark.parametrize(
    ("reads", "why"), [(False, "Broken pipe"), (True, "its reader is too slow")]
)
def test_tape_writer__a_reader_that_goes_away_or_sleeps_does_not_hold_up_the_sensor(
    tmp_path: Path, reads: bool, why: str
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(UsageError, match="No such device"):
        TapeWriter(fifo, HEADER, pytest.fail)  # no reader: it is not waited for
    other_end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    said: list[str] = []
    writer = TapeWriter(fifo, HEADER, said.append)
    if not reads:
        os.close(other_end)
    for at in range(5000):
        writer.on_fact(Tick(at, 1, 0, False))
    writer.close()
    assert said == [why]
    if reads:
        os.close(other_end)


def test_tape_writer__memory_is_bounded_and_a_fact_too_long_for_a_line_is_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    writer = TapeWriter(path, replace(HEADER, names=True), pytest.fail)
    modules = (Module(1, 2, "x" * 1000),) * 2000
    writer.on_fact(CodeSeen(1, Pid(1), Tid(1), (), modules))
    for at in range(20_000):
        writer.on_fact(Tick(at, 1, 0, False))
        assert len(writer._buffer) < 70_000
    writer.end(End(2.0, "exited", 0))
    writer.close()
    entries = list(reader(path.read_bytes()))
    assert len(entries) == 20_001
    assert isinstance(entries[-1], End)
    assert entries[-1].left_out_count == 1


@pytest.mark.parametrize("path", ["/nonexistent/a", "/proc/self", "/tmp/\0"])
def test_tape_writer__where_nothing_can_be_written_the_run_does_not_begin(path: str) -> None:
    with pytest.raises(UsageError, match="cannot record to"):
        TapeWriter(Path(path), HEADER, pytest.fail)


# ---- read


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "line 1: it is empty"),
        (b"\n", "line 1: it is not JSON"),
        (b"\x7fELF" * 100, "line 1: the tape ends within it"),
        (b"[]\n", "line 1: it is not a JSON object"),
        (b'{"schema":"kcover.io/tape/v2"}\n', "no schema kcover.io/tape/v1"),
        (b'{"schema":"kcover.io/tape/v1"}\n', "line 1: version: missing"),
        (HEAD.replace(b"x86_64", b"sparc"), "machine 'sparc' is not supported"),
        (
            HEAD.replace(b"observe", b"bomb"),
            "line 1: act: expected one of observe, snapshot, ",
        ),
        (
            HEAD.replace(b"{}", b'{"stopped_s":1e999}'),
            "line 1: policy.stopped_s: expected a number",
        ),
        (HEAD + b"x\n", "line 2: it is not JSON"),
        (HEAD + TICK + TICK[:-1], "line 3: the tape ends within it"),
        (HEAD + b"{}\n", "line 2: it is neither a fact nor a mark"),
        (HEAD + b'{"fact":7}\n', "line 2: it is neither a fact nor a mark"),
        (HEAD + b'{"fact":"tick"}\n', "line 2: tick: boottime_ns: missing"),
        (HEAD + b"[" * 100_000 + b"\n", "line 2: it is not JSON"),
        (HEAD + b'{"a":' + b"9" * 5000 + b"}\n", "line 2: it is not JSON"),
        (HEAD + b" " * 2 * MOST_LINE_BYTES + b"\n", "line 2: it is too long"),
        (HEAD + b'{"fact":"\xff"}\n', "line 2: it is not JSON"),
        (gzip.compress(HEAD + TICK)[:-9], "truncated"),
        (gzip.compress(HEAD + TICK)[:-8] + b"12345678", "it cannot be read"),
        (b"\x1f\x8bnonsense here", "line 1: it cannot be read"),
    ],
)
def test_tape_reader__what_is_no_tape_is_refused_in_one_line(data: bytes, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        play(data)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tape_reader__a_bomb_is_read_within_one_line_of_memory() -> None:
    bomb = gzip.compress(HEAD + b" " * 200_000_000, compresslevel=1)
    with pytest.raises(UsageError, match="line 2: it is too long"):
        play(bomb)


def test_tape_reader__what_a_newer_program_wrote_is_counted_and_passed_over() -> None:
    newer = [b'{"fact":"dream","x":1}\n', b'{"fact":"dream"}\n', b'{"mark":"pause"}\n']
    newer.append(b'{"fact":"aer_total","boottime_ns":1,"device":"","severity":9}\n')
    tape = reader(HEAD + b"".join(newer) + TICK.replace(b'"late"', b'"more":{},"late"'))
    assert list(tape) == [Tick(5, 1, 0, False)]
    assert tape.skipped == {"dream": 2, "pause": 1, "aer_total": 1}
    many = b"".join(b'{"fact":"kind%d"}\n' % number for number in range(1000))
    tape = reader(HEAD + many)
    assert list(tape) == []
    assert len(tape.skipped) <= 65
    assert tape.skipped.total() == 1000


def test_main__a_file_that_is_none_and_one_that_cannot_be_judged_end_with_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(HEAD + b"nonsense\n")
    for path in (tmp_path / "none", tmp_path, tmp_path / "a"):
        assert main(["replay", str(path)]) == 2
        assert len(capfd.readouterr().err.splitlines()) == 1


def test_main__a_kind_that_commands_a_terminal_is_made_visible(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(HEAD + b'{"fact":"\\u001b]0;owned\\u0007\\nok"}\n')
    assert main(["replay", str(tmp_path / "a")]) == 0
    said = capfd.readouterr().err
    assert said.endswith(r"wrote it: 1 \x1b]0;owned\x07\nok" + "\n")


@pytest.fixture(scope="module")
def tape_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tape") / "a"

    def short(stage: Stage) -> None:
        stage.run(3)
        stage.exit(stage.rank(1), code=1)
        stage.run(2)

    record(short, path)
    return path.read_bytes()


def refusal_of(data: bytes) -> str:
    """Empty where these bytes are played."""
    try:
        play(data)
    except UsageError as error:
        return str(error)
    return ""


@given(data=st.data())
def test_replay__any_bytes_are_played_or_refused(tape_bytes: bytes, data: st.DataObject) -> None:
    blob = bytearray(tape_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(blob) - 1))
        length = data.draw(st.integers(0, 40))
        numbers = st.sampled_from([b"-1", b"0", b"18446744073709551615", b"null", b'""', b"[]"])
        blob[at : at + length] = data.draw(st.binary(max_size=8) | numbers)
    packed = data.draw(st.booleans())
    assert "\n" not in refusal_of(gzip.compress(bytes(blob)) if packed else bytes(blob))


@given(st.binary(max_size=200), st.sampled_from([b"", HEAD, b"\x1f\x8b", b"\x1f\x8b\x08\0"]))
def test_replay__bytes_of_no_tape_are_refused(blob: bytes, head: bytes) -> None:
    assert "\n" not in refusal_of(head + blob)
