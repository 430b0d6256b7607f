"""What reaches the reader: JSON, text, the live table; and that a closed pipe harms nothing."""

import json
import os
import pty
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.archive.incident_archive import Archive, unpacked
from kcover_ebpf.archive.node_part import EvidenceTrigger
from kcover_ebpf.diagnosis.decisions import Decision
from kcover_ebpf.diagnosis.history.process import ProcessHistory
from kcover_ebpf.diagnosis.job import Job
from kcover_ebpf.facts.kernel import ProcessExit, SocketSample
from kcover_ebpf.facts.syscalls import SyscallTable
from kcover_ebpf.ids import Inode, Pid
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind, WaitRow
from kcover_ebpf.output import archives
from kcover_ebpf.run import bundle, terminal_table
from kcover_ebpf.run.bundle import BundleThread
from kcover_ebpf.run.out import Out
from kcover_ebpf.run.sinks import Announcer, JsonSink, Recent, Sink, TextSink
from kcover_ebpf.settings import Act, Policy
from kcover_ebpf.trace import tcp_connections
from tests.unit.support.terminals import everything, resize

WORKING = Verdict(VerdictKind.WORKING, Cause.TRAINING, time_s=100.25, since_s=90.0, job="j")
HUNG = Verdict(
    VerdictKind.HUNG,
    Cause.STOPPED,
    time_s=103.5,
    since_s=100.0,
    job="j",
    incident="j-1",
    waits=(WaitRow(0, 7, 7, "python3", "rank", "futex", 3.5, "victim"),),
)
CRASH = ProcessExit(1, Pid(7), 3, 0, core_dumped=False, comm="python3")
FINE = ProcessExit(1, Pid(8), 0, 0, core_dumped=False, comm="ls")
DECISION = Decision(Act.SHUTDOWN, "two kinds", HUNG)


@pytest.fixture
def pipe() -> Iterator[tuple[int, Out]]:
    reader, writer = os.pipe()
    yield reader, Out(writer)
    for descriptor in (reader, writer):
        try:
            os.close(descriptor)
        except OSError:
            continue


def report_all(sink: Sink) -> None:
    sink.on_start({"job": "j", "text": "watching j"})
    sink.on_fact(FINE)
    sink.on_fact(CRASH)
    sink.on_verdict(WORKING)
    sink.on_verdict(HUNG)
    sink.on_waits(HUNG.waits, "HUNG")
    sink.on_blind("3 records were lost")
    sink.on_action(DECISION, "killed it")
    sink.on_end({"exit_code": 75, "text": "the job was shut down"})


def test_json_sink__json_lines(pipe: tuple[int, Out]) -> None:
    reader, out = pipe
    report_all(JsonSink(out))
    lines = [json.loads(line) for line in os.read(reader, 65536).splitlines()]
    events = ["start", "fact", "fact", "verdict", "verdict", "blind", "action", "end"]
    assert [line["event"] for line in lines] == events
    assert {line["schema"] for line in lines} == {"kcover.io/v1alpha1"}
    assert lines[3]["time"] == 100.25
    assert lines[5]["reason"] == "3 records were lost"
    action = {"act": "shutdown", "reason": "two kinds", "text": "killed it", "incident": "j-1"}
    assert action.items() <= lines[6].items()
    assert lines[7]["exit_code"] == 75


def test_text_sink__text_lines(pipe: tuple[int, Out]) -> None:
    reader, out = pipe
    report_all(TextSink(out))
    text = os.read(reader, 65536).decode()
    assert re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text) == (
        "[kcover HH:MM:SS] watching j\n"
        "[kcover HH:MM:SS] pid 7 (python3) exited with code 3\n"
        "[kcover HH:MM:SS] WORKING  training: is training\n"
        "[kcover HH:MM:SS] HUNG  culprit unknown, stopped: is stopped by a signal, for 3.5s\n"
        "    RANK  ROLE  PID/TID  THREAD   WAITS IN  SINCE  NOTE\n"
        "    0     rank  7        python3  futex     3.5s   victim\n"
        "[kcover HH:MM:SS] blind: 3 records were lost\n"
        "[kcover HH:MM:SS] shutdown: killed it (two kinds)\n"
        "[kcover HH:MM:SS] the job was shut down\n"
    )


def test_json_sink__a_reader_that_went_away_harms_nothing(pipe: tuple[int, Out]) -> None:
    reader, out = pipe
    os.close(reader)
    report_all(JsonSink(out))
    report_all(TextSink(out))
    with pytest.raises(BrokenPipeError):
        os.write(out.descriptor, b"x")


def test_json_sink__a_hushed_announcer_reports_only_what_we_do(pipe: tuple[int, Out]) -> None:
    reader, out = pipe
    announcer = Announcer([JsonSink(out)], wants_waits=False)
    announcer.on_verdict(WORKING)
    announcer.hushed = True
    announcer.on_fact(CRASH)
    announcer.on_verdict(HUNG)
    announcer.on_blind("x")
    announcer.on_action(DECISION, "killed it")
    assert announcer.verdict == WORKING
    announcer.on_start({"text": "again"})
    announcer.on_verdict(HUNG)
    assert announcer.verdict == HUNG
    lines = [json.loads(line) for line in os.read(reader, 65536).splitlines()]
    assert [line["event"] for line in lines] == ["verdict", "action", "start", "verdict"]


def kept(folder: Path) -> Archive:
    recent = Recent(lambda: 104.0)
    report_all(recent)
    job = Job(Policy(), SyscallTable("x86_64"))
    taken = bundle.taken(job, HUNG, recent.lines, recent.moments, EvidenceTrigger.RUN, "gpu-1")
    text = BundleThread(folder, taken, (), 0.0).outcome()
    path = folder / "19700101T000143.500Z-j-1-HUNG"
    assert text == f"wrote {path}"
    return unpacked(archives.read_files(path), "bundle")


def test_recent__the_bundle_has_what_a_person_needs(tmp_path: Path) -> None:
    archive = kept(tmp_path)
    assert archive.incident is not None
    assert archive.incident.status is not None
    moments = [(moment.phase, moment.time_s) for moment in archive.incident.status.timeline]
    assert moments == [
        ("Started", 104.0),
        ("WORKING", 100.25),
        ("HUNG", 103.5),
        ("Shutdown", 104.0),
    ]
    (part,) = archive.parts
    (thread,) = part.threads
    assert (thread.rank, thread.wait, thread.since_s, thread.note) == (0, "futex", 3.5, "victim")
    assert part.report is not None
    assert part.report.verdict is not None
    assert part.report.verdict.since_s == 100.0
    assert [json.loads(line)["event"] for line in part.facts] == ["fact", "fact", "blind"]
    assert archive.missing == ()


def test_bundle__people_find_the_verdict_without_our_program(tmp_path: Path) -> None:
    kept(tmp_path)
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "verdict.json").read_text())["incident"] == "j-1"
    assert (folder / "verdict.txt").read_text().startswith("HUNG  culprit unknown, stopped")


def test_bundle__a_disk_that_does_not_answer_keeps_no_action_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(bundle, "write_bundle", lambda *_: answered.wait(60))
    monkeypatch.setattr(bundle, "BUNDLE_LIMIT_S", 0.1)
    job = Job(Policy(), SyscallTable("x86_64"))
    taken = bundle.taken(job, HUNG, (), (), EvidenceTrigger.RUN, "gpu-1")
    assert "still being written" in BundleThread(tmp_path, taken, (), 0.0).outcome()
    answered.set()


def test_name_of__the_name_of_a_bundle_is_a_plain_file_name() -> None:
    name = bundle.name_of(Verdict(VerdictKind.HUNG, Cause.STOPPED, 0.25, 0.0, "a", "../x y-1"))
    assert name == "19700101T000000.250Z-_x_y-1-HUNG"


def socket_sample(**changes: object) -> SocketSample:
    values: dict[str, object] = {
        "boottime_ns": 5_000_000_000,
        "pid": Pid(7),
        "fd": 3,
        "inode": Inode(9),
        "state": "ESTABLISHED",
        "local": ("10.0.0.1", 29500),
        "remote": ("10.0.0.2", 40000),
        "unread_bytes": 96,
        "unsent_bytes": 0,
        "unacked_bytes": 0,
        "acked_bytes": 10,
        "received_bytes": 10,
        "backoff": 0,
        "send_window_bytes": 1,
        "last_send_ns": 3_000_000_000,
        "last_receive_ns": 0,
    }
    return SocketSample(**values | changes)  # type: ignore[arg-type]


def test_table__edges_name_both_ends() -> None:
    one, two = ProcessHistory(Pid(7), 0), ProcessHistory(Pid(8), 0)
    one.on_socket(socket_sample())
    one.on_socket(socket_sample(fd=4, state="LISTEN"))
    two.on_socket(
        socket_sample(pid=Pid(8), fd=5, local=("10.0.0.2", 40000), remote=("10.0.0.1", 29500))
    )
    found = tcp_connections.edges([two, one], now_ns=5_000_000_000)
    assert [(connection.pid, connection.peer_pid, connection.fd) for connection in found] == [
        (7, 8, 3),
        (8, 7, 5),
    ]
    table = tcp_connections.table(found)
    assert table[1].split()[:6] == [
        "process",
        "7",
        "process",
        "8",
        "10.0.0.1:29500",
        "10.0.0.2:40000",
    ]
    assert table[1].endswith("2.0s ago  never")
    assert tcp_connections.table([]) == []


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    reader, writer = pty.openpty()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_out__the_panel_fits_only_on_a_terminal_with_room(
    terminal: tuple[int, int], pipe: tuple[int, Out], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    _, writer = terminal
    resize(writer, 30, 100)
    assert terminal_table.fits(writer)
    resize(writer, 10, 100)
    assert not terminal_table.fits(writer)
    resize(writer, 30, 30)
    assert not terminal_table.fits(writer)
    assert not terminal_table.fits(pipe[0])
    resize(writer, 30, 100)
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal_table.fits(writer)


def test_out__the_panel_gives_the_terminal_back(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    # The pseudo-terminal of a test is no process's controlling terminal.
    monkeypatch.setattr(terminal_table.LiveSink, "_is_foreground", lambda _: True)
    reader, writer = terminal
    resize(writer, 30, 60)
    restores: list[str] = []
    sink = terminal_table.LiveSink(Out(writer), restores.append)
    rows = [WaitRow(rank, 7, 7, "python3", "rank", "futex", 1.0) for rank in range(12)]
    sink.on_start({"text": "watching"})
    sink.on_waits(rows, "WORKING training")
    drawn = everything(reader)
    assert "\x1b[1;17r" in drawn
    assert "WORKING training" in drawn
    assert "... and 2 more" in drawn
    assert all(len(line) <= 60 for line in re.split(r"\x1b\[[\d;]*[A-Za-z]|\x1b.|\r\n", drawn))
    resize(writer, 40, 60)
    sink.on_waits(rows, "WORKING training")
    assert "\x1b[1;27r" in everything(reader)
    sink.close()
    last = everything(reader)
    assert last == restores[1]
    assert "\x1b[r" in last
    assert restores[-1] == ""
    sink.close()
    sink.on_end({"text": "bye"})
    assert "\x1b" not in everything(reader)
