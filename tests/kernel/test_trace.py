"""`kcover-ebpf trace` on real processes: what it says is true, and it leaves no mark on them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.waiting import until

from .command import COMMAND
from .helpers import Running, program, running, until_asleep

pytestmark = pytest.mark.kernel
MAIN = "import sys; from kcover_ebpf.cli import main; sys.exit(main())"
PIPES = """
import os, select, sys, time
r, w = os.pipe()
if os.fork() == 0:
    time.sleep(1000)
os.close(w)
p = select.poll(); p.register(r); print(flush=True)
p.poll(77000) if sys.argv[1] == "poll" else os.read(r, 1)
"""


def trace(*arguments: str) -> tuple[dict[str, Any], int]:
    done = subprocess.run(
        [COMMAND, "trace", *arguments, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.returncode


def rows(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["tid"]: row for row in found["threads"]}


@pytest.fixture
def deadlock() -> Iterator[tuple[Running, dict[str, int]]]:
    with running(program("deadlock")) as target:
        names = dict(target.line().split() for _ in range(3))
        tids = {name: int(tid) for name, tid in names.items()}
        until(lambda: all(wchan(target.pid, tid) for tid in tids.values()), "the deadlock")
        yield target, tids


def wchan(pid: int, tid: int) -> bool:
    return "futex" in Path(f"/proc/{pid}/task/{tid}/wchan").read_text()


def test_each_half_of_a_deadlock_names_the_holder(deadlock: tuple[Running, dict[str, int]]) -> None:
    target, tids = deadlock
    found, code = trace("--pid", str(target.pid))
    threads = rows(found)
    assert threads[tids["first"]]["waits_for"][0]["tid"] == tids["second"]
    assert threads[tids["second"]]["waits_for"][0]["tid"] == tids["first"]
    assert threads[tids["first"]]["text"].startswith("futex: mutex 0x")
    assert f"owned by thread {tids['second']}" in threads[tids["first"]]["text"]
    assert threads[tids["joiner"]]["text"] == f"joins thread {tids['first']} (deadlock)"
    stacks = {stack["tid"]: stack for stack in found["stacks"]}
    native = " ".join(stacks[tids["first"]]["native"])
    assert "first (deadlock)" in native
    assert any("futex" in frame for frame in stacks[tids["first"]]["kernel"])
    assert code == 0


def threads_of(pid: int) -> list[tuple[str, str, str]]:
    """State, tracer and number of stops of each thread."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        status = dict(
            line.split(":\t", 1)
            for line in (task / "status").read_text().splitlines()
            if "\t" in line
        )
        found.append((status["State"], status["TracerPid"], status["voluntary_ctxt_switches"]))
    return found


def test_a_trace_touches_no_thread_of_its_target(deadlock: tuple[Running, dict[str, int]]) -> None:
    # a stop, however short, is a switch: the counters would show it
    target, _ = deadlock
    # its first thread, too, which waits for the others
    until_asleep(target.pid)
    before = threads_of(target.pid)
    trace("--pid", str(target.pid))
    assert threads_of(target.pid) == before
    assert {tracer for _, tracer, _ in before} == {"0"}


@pytest.mark.parametrize("how", ["read", "poll"])
def test_the_partner_of_a_pipe_is_named(how: str) -> None:
    with running("/usr/bin/python3", "-c", PIPES, how) as target:
        target.line()
        (child,) = map(
            int, Path(f"/proc/{target.pid}/task/{target.pid}/children").read_text().split()
        )
        row = rows(trace("--pid", str(target.pid))[0])[target.pid]
        assert [item["pid"] for item in row["waits_for"]] == [child]
        assert row["waits_for"][0]["kind"] == "pipe"
        assert row["state"] == "S"
        if how == "poll":
            assert 0 < row["ends_in_s"] < 77
        else:
            assert row["ends_in_s"] is None


def test_a_partner_outside_the_job_is_found() -> None:
    with running("/usr/bin/python3", "-c", "input()") as target:
        until(lambda: "pipe" in Path(f"/proc/{target.pid}/wchan").read_text(), "the read")
        row = rows(trace("--pid", str(target.pid))[0])[target.pid]
        assert os.getpid() in [item["pid"] for item in row["waits_for"]]
        assert "not part of this job" in row["text"]


def test_python_frames_are_seen() -> None:
    code = "def wait():\n    input()\nwait()"
    with running("/usr/bin/python3", "-c", code) as target:
        until(lambda: "pipe" in Path(f"/proc/{target.pid}/wchan").read_text(), "the read")
        found, _ = trace("--pid", str(target.pid))
        (stack,) = found["stacks"]
        assert [frame.split(" ")[0] for frame in stack["python"]] == ["wait", "<module>"]


def test_without_py_spy_the_trace_continues(tmp_path: Path) -> None:
    # Debian's interpreter has no py-spy beside it, and PATH leads nowhere
    packages = Path(click.__file__).parents[1]
    paths = f"{Path(__file__).parents[2]}:{packages}"
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": paths}
    with running("/usr/bin/python3", "-c", "input()") as target:
        done = subprocess.run(
            ["/usr/bin/python3", "-c", MAIN, "trace", "--pid", str(target.pid)],
            capture_output=True,
            text=True,
            env=environ,
            timeout=100,
            check=False,
        )
    assert "not observable: Python frames (py-spy is not installed)" in done.stdout, done.stderr


def test_five_hundred_threads_become_a_few_lines() -> None:
    with running(program("crowd"), "threads", "500") as target:
        target.line()
        until_asleep(target.pid)
        done = subprocess.run(
            [COMMAND, "trace", "--pid", str(target.pid)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        found, _ = trace("--pid", str(target.pid))
    table, _, _ = done.stdout.partition("\n\n")
    assert len(table.splitlines()) < 10
    assert "+499" in table
    threads = rows(found)
    assert len(threads) == 501
    held = [item for row in threads.values() for item in row["waits_for"]]
    assert [item["tid"] for item in held].count(target.pid) == 500


def test_what_was_saved_is_shown_the_same_without_privileges(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    with running(program("deadlock")) as target:
        target.line()
        shown = subprocess.run(
            [COMMAND, "trace", "--pid", str(target.pid), "--save", str(file)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    # as a user who may read nothing of ours, so the file is handed over open
    unprivileged = ["setpriv", "--reuid=65534", "--clear-groups"]
    with file.open() as saved:
        again = subprocess.run(
            [*unprivileged, COMMAND, "trace", "--replay", "/dev/stdin"],
            stdin=saved,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert (again.stdout, again.returncode) == (shown.stdout, shown.returncode), again.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_helper_is_left_however_a_trace_ends(number: signal.Signals) -> None:
    with running(program("deadlock")) as target:
        target.line()
        tracing = subprocess.Popen(
            ["env", "--default-signal=INT", COMMAND, "trace", "--live", "--pid", str(target.pid)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert tracing.stdout is not None
        assert tracing.stdout.readline().startswith("pid-")
        tracing.send_signal(number)
        tracing.wait(30)
        tracing.stdout.close()
        until(lambda: not session(tracing.pid), "the end of its helpers")
        assert tracing.returncode in (128 + number, -number, 0)


def session(leader: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if len(words) > 3 and int(words[3]) == leader and words[0] not in "ZX":
            found.append(int(entry.name))
    return found


def test_a_trace_ends_when_its_client_is_gone() -> None:
    with running(program("deadlock")) as target:
        target.line()
        command = [COMMAND, "trace", "--live", "--with-asker", "-o", "jsonl"]
        tracing = subprocess.Popen(
            [*command, "--pid", str(target.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert tracing.stdin is not None
        assert tracing.stdout is not None
        assert '"event":"trace"' in tracing.stdout.readline()
        tracing.stdin.close()
        tracing.wait(30)
        tracing.stdout.close()
