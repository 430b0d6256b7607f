"""What a helper process may use and do, how its output is bounded, and what happens to one that does not end."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Confinement, HelpersLeftBehind, left_behind
from kcover_ebpf.host.capabilities import Capability

SMALL = Confinement(data_bytes=64 << 20, cpu_s=20)
pytestmark = pytest.mark.needs("root")


def python(program: str, confinement: Confinement = SMALL, **other: Any) -> helper.Helper:
    return helper.start([sys.executable, "-I", "-S", "-c", program], confinement, **other)


def said(program: str, confinement: Confinement = SMALL, most_bytes: int = 1 << 20) -> str:
    out, why = python(program, confinement).output(time.monotonic() + 30, most_bytes)
    assert out, why
    return out.decode()


SHOW = """
import json, resource
words = {line.split(":")[0]: line.split()[1] for line in open("/proc/self/status") if len(line.split()) > 1}
limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
print(json.dumps([words, limits, open("/proc/self/oom_score_adj").read()]))
"""


def test_start__a_helper_has_its_limits_its_capabilities_and_no_way_to_gain_more() -> None:
    kept = frozenset({Capability.SYS_PTRACE, Capability.DAC_READ_SEARCH})
    words, limits, score = json.loads(
        said(SHOW, Confinement(48 << 20, 7, kept, 1 << 30, open_files=99))
    )
    assert (words["NoNewPrivs"], words["Seccomp"], int(score)) == ("1", "2", 1000)
    mask = (1 << Capability.SYS_PTRACE) | (1 << Capability.DAC_READ_SEARCH)
    assert (int(words["CapPrm"], 16), int(words["CapEff"], 16)) == (mask, mask)
    wanted = {"DATA": 48 << 20, "CPU": 7, "FSIZE": 0, "CORE": 0, "NOFILE": 99, "AS": 1 << 30}
    assert {name: limits[f"RLIMIT_{name}"] for name in wanted} == {
        name: [value, value] for name, value in wanted.items()
    }


def test_start__what_no_reader_needs_is_refused() -> None:
    program = f"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    return ctypes.get_errno() if result < 0 else 0
found = []
for step in (lambda: os.kill({os.getpid()}, 0), lambda: os.mknod("/dev/shm/x", 0o600),
             lambda: os.chroot("/"), lambda: os.unshare(0) if hasattr(os, "unshare") else os.kill(1, 0)):
    try:
        step()
        found.append("done")
    except PermissionError:
        found.append("refused")
print(found, call(101 if os.uname().machine == "x86_64" else 117, 0, 0, 0, 0))
"""
    assert said(program).strip() == "['refused', 'refused', 'refused', 'refused'] 1"
    free = Confinement(64 << 20, 20, filtered=False)
    assert said(f"import os; os.kill({os.getpid()}, 0); print('done')", free) == "done\n"


def test_start__memory_beyond_the_limit_is_the_helpers_own_end() -> None:
    running = python("x = b'x' * (200 << 20); print('had it')")
    out, why = running.output(time.monotonic() + 30, 1000)
    assert (out, "MemoryError" in why) == (b"", True)


def test_start__a_helper_that_computes_without_end_is_ended_by_the_kernel() -> None:
    running = python("while True: pass", Confinement(64 << 20, 1))
    assert running.wait(time.monotonic() + 60)
    assert running.exit_code == -signal.SIGKILL
    assert running.end()


def test_start__a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        helper.start(["/no/such/program"], SMALL)


def test_output__more_than_is_wanted_is_cut_and_said() -> None:
    running = python("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    out, why = running.output(time.monotonic() + 30, 100_000)
    assert (len(out), why) == (100_000, "it wrote more than 100000 bytes")
    assert running.exit_code == -signal.SIGKILL


def test_output__the_end_of_time_ends_it() -> None:
    running = python("print('begun', flush=True)\nwhile True: pass")
    out, why = running.output(time.monotonic() + 1.5, 1000)
    assert (out.strip() in (b"", b"begun"), why) == (True, "no time was left")
    assert running.exit_code == -signal.SIGKILL


def test_output__errors_without_end_cost_no_memory() -> None:
    program = "import sys\nfor _ in range(400): sys.stderr.write('y' * 100000)\nsys.stderr.write('the reason')"
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out, why = python(program).output(time.monotonic() + 30, 1000)
    assert (out, why.endswith("the reason")) == (b"", True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 20_000


def test_end__a_leader_is_ended_with_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '600']); "
        f"open({str(mark)!r}, 'w').write(str(p.pid)); time.sleep(600)"
    )
    running = helper.start([sys.executable, "-c", program], None, session=True)
    while not mark.exists() or not mark.read_text():
        time.sleep(0.01)
    child = int(mark.read_text())
    assert running.end()
    deadline_s = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_end__what_does_not_end_is_left_behind_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in state D cannot be made here: its kill is withheld, which looks the same from outside."""
    mine = HelpersLeftBehind()
    monkeypatch.setattr(helper, "left_behind", mine)
    running = python("import time; time.sleep(600)")
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", lambda *_: None)
        began_s = time.monotonic()
        assert not running.end(0.1)
        assert time.monotonic() - began_s >= 0.1
    assert (mine.count(), mine.total) == (1, 1)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait(time.monotonic() + 20)
    assert (mine.count(), mine.total) == (0, 1)
    assert left_behind is not mine


def test_end__ends_once() -> None:
    running = python("print('x')")
    assert running.output(time.monotonic() + 30, 10)[0] == b"x\n"
    assert running.end()
    assert running.exit_code is not None


def test_start__descriptors_of_ours_are_not_inherited_but_those_that_are_passed() -> None:
    inner, outer = os.pipe()
    try:
        program = "import os; print(*os.listdir('/proc/self/fd'))"
        running = python(program, passed=(inner,), stdin=subprocess.DEVNULL)
        out, why = running.output(time.monotonic() + 30, 1000)
        found = set(map(int, out.split()))
        assert (inner in found, outer in found) == (True, False), why
    finally:
        os.close(inner)
        os.close(outer)


def test_start_forked__what_the_work_returns_is_read_and_what_it_prints_is_not() -> None:
    def work() -> bytes:
        os.write(1, b"noise")
        return f"{os.getpid()} {os.getsid(0)}".encode()

    running = helper.start_forked(work)
    out, why = running.output(time.monotonic() + 30, 1000)
    assert (out, why) == (f"{running.pid} {running.pid}".encode(), "")
    assert running.exit_code == 0


def test_start_forked__work_that_fails_says_nothing() -> None:
    def work() -> bytes:
        raise ValueError("no such thing")

    assert helper.start_forked(work).output(time.monotonic() + 30, 1000) == (b"", "")


def test_start_forked__one_that_is_ended_at_once_is_not_left_behind() -> None:
    """It may not lead a group yet."""

    def endless() -> bytes:
        time.sleep(600)
        return b""

    for _ in range(23):
        assert helper.start_forked(endless).end(20.0)
