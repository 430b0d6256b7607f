"""What the agent's own process opens when it learns who ranks are: no name that a tenant has chosen.

All else about ranks is read by confined processes (decision 0020). What is left here are files of /proc by number, of
each of which so many bytes are read that a tenant can neither lengthen nor replace them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.diagnosis.membership.rank_numbers import RANK_ENVIRON
from kcover_ebpf.facts.host import ProcessSeen, Unreadable
from kcover_ebpf.host import procfs
from kcover_ebpf.host.identities import Identities
from kcover_ebpf.ids import Pid

OF_THE_KERNEL = re.compile(r"/proc/\d+/(stat|cmdline|environ|status|comm|fd)|/proc")
"""What may be opened: the name says which process, and nothing of what that process says."""
HOSTILE = """
import os, sys
os.mkfifo("libpython3.11.so.1.0")
kept = [os.open("libpython3.11.so.1.0", os.O_RDWR)]
kept += [os.open(f"/proc/self/fd/{kept[0]}", os.O_RDWR) for _ in range(200)]
print("ready", flush=True)
sys.stdin.read()
"""
opened: list[str] = []


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.scandir", "os.listdir") and arguments[0] is not None:
        opened.append(
            os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | Path) else ""
        )


sys.addaudithook(note)


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Pid]:
    """A rank whose environment, arguments, folder and descriptors name files that must not be opened."""
    trap = str(tmp_path / "libpython3.11.so.1.0")
    environ = dict.fromkeys(RANK_ENVIRON, trap) | {"RANK": "0", "PAD": "x" * 100_000}
    environ |= {f"PAD{number}": "y" * 100_000 for number in range(10)}
    command = [sys.executable, "-S", "-c", HOSTILE, trap, "z" * 100_000]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield Pid(child.pid)
        child.kill()


def test_identities__only_files_of_the_kernel_are_opened_and_little_of_them_is_kept(
    hostile: Pid,
) -> None:
    opened.clear()
    identities = Identities()
    seen: list[ProcessSeen | Unreadable] = []
    deadline = time.monotonic() + 20
    while not seen and time.monotonic() < deadline:
        seen = list(identities.learn([hostile], RANK_ENVIRON))
    procfs.open_devices(hostile)
    procfs.open_among(hostile, ["/dev/null"])
    procfs.is_dying(hostile)
    (found,) = seen
    assert isinstance(found, ProcessSeen)
    assert found.rank_environ["RANK"] == "0"
    assert sum(len(word) for word in found.argv) < 8192 + 256
    assert max(len(value) for value in found.rank_environ.values()) <= 200
    assert {name for name in opened if str(hostile) in name}, "the hook sees what is opened"
    assert [name for name in opened if not OF_THE_KERNEL.fullmatch(name)] == []
