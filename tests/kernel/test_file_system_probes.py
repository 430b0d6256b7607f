"""A real FUSE server that hangs, or that is slow, is asked whether it answers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kcover_ebpf.facts.host import FileSystemProbe, ProbeRequest
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.watching.file_system_probes import FileSystemProbes

pytestmark = pytest.mark.needs("root", "fuse")


@contextmanager
def served(folder: Path, manner: str) -> Iterator[Path]:
    """A mounted file system of that manner, and its file."""
    folder.mkdir()
    command = [sys.executable, "-m", "testbed.faults.fuse_server", str(folder), manner, "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"mounted\n"
        try:
            yield folder / "data"
        finally:
            subprocess.run(["umount", "-f", "-l", folder], check=True)
            server.kill()


def reader_of(path: Path) -> subprocess.Popen[bytes]:
    """A process that reads the file without end."""
    program = f"import os\nf = os.open({str(path)!r}, os.O_RDONLY)\nprint(f, flush=True)\nwhile True: os.pread(f, 9, 0)"
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)


def asked(request: ProbeRequest, seconds: float) -> list[FileSystemProbe]:
    """What is known after so long, or once it answered."""
    probes = FileSystemProbes()
    found: list[FileSystemProbe] = []
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s and not (found and found[-1].answered):
            found += probes.tick([request])
            time.sleep(0.1)
    finally:
        probes.close()
    return found


@pytest.mark.parametrize(("manner", "answers"), [("hung", False), ("slow", True)])
@pytest.mark.parametrize("by", ["descriptor", "path"])
def test_file_system_probes__a_server_that_hangs_answers_no_probe_and_a_slow_one_does(
    tmp_path: Path, manner: str, answers: bool, by: str
) -> None:
    # it can end once the file system is gone
    with ExitStack() as readers, served(tmp_path / "mount", manner) as path:
        reader = readers.enter_context(reader_of(path))
        readers.callback(reader.kill)
        assert reader.stdout is not None
        fd = int(reader.stdout.readline())
        time.sleep(0.5)
        place = (fd, "") if by == "descriptor" else (-1, str(path))
        request = ProbeRequest(Pid(reader.pid), Tid(reader.pid), boottime_ns(), *place)
        found = asked(request, 10 if answers else 3)
    assert found, "nothing was learned"
    assert [probe.answered for probe in found][-1] is answers
    assert answers or found[-1].boottime_ns - found[-1].asked_ns > 2e9


def test_file_system_probes__what_cannot_be_asked_is_no_answer(tmp_path: Path) -> None:
    thread_count = threading.active_count()
    gone = ProbeRequest(Pid(2**22 - 1), Tid(2**22 - 1), boottime_ns(), 3)
    probes = FileSystemProbes()
    try:
        assert probes.tick([gone]) == []
        # while it is being asked, nothing is known yet
        while found := probes.tick([gone]):
            assert not any(probe.answered for probe in found)
            time.sleep(0.01)
    finally:
        probes.close()
    assert threading.active_count() == thread_count, "it needs no thread"
