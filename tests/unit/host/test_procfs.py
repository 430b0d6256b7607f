"""What /proc says, from any bytes it may hold, and of this very process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.facts.host import ProcessSeen
from kcover_ebpf.host import procfs, rank_files
from kcover_ebpf.host.proc_text import status_numbers
from kcover_ebpf.host.procfs import parse_environ, parse_stat
from kcover_ebpf.ids import Pid

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
NAMES = st.one_of(st.text(max_size=15), st.text(alphabet="() \n\tRS0", max_size=15))


@given(NAMES, st.integers(0, 2**22), st.integers(0, 2**62), st.lists(st.integers(), max_size=30))
def test_parse_stat__a_name_may_hold_anything(
    name: str, ppid: int, ticks: int, more: list[int]
) -> None:
    between = " ".join(["0"] * 17)
    text = f"77 ({name}) S {ppid} {between} {ticks} {' '.join(map(str, more))}\n"
    assert parse_stat(text) == (name, ppid, ticks * TICK_NS)


@given(st.binary(), st.sets(st.text(max_size=3)))
@example(b"A=1\0RANK=" + b"7" * 300 + b"\0RANK\0", {"RANK", "B"})
def test_parse_environ__any_environment_block_gives_wanted_variables_only(
    raw: bytes, wanted: set[str]
) -> None:
    found = parse_environ(raw, wanted)
    assert found.keys() <= wanted
    assert all(name.encode() + b"=" in raw for name in found)
    assert all(len(value) <= 200 for value in found.values())


PAIRS = st.dictionaries(
    st.sampled_from(["RANK", "WORLD_SIZE", "SECRET", "RANK2"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
)


@given(PAIRS)
def test_parse_environ__variables_are_found_whole_and_others_are_never_kept(
    environ: dict[str, str],
) -> None:
    raw = b"".join(f"{name}={value}\0".encode() for name, value in environ.items())
    wanted = {"RANK", "WORLD_SIZE"}
    assert parse_environ(raw, wanted) == {k: v for k, v in environ.items() if k in wanted}


@pytest.mark.parametrize("entry", [b"\0", b"A\0", b"A=\0", b"RANK=7\0"])
def test_parse_environ__of_very_many_variables_takes_no_time_for_each(entry: bytes) -> None:
    raw = entry * ((256 << 10) // len(entry))
    wanted = {f"NAME_{number}" for number in range(20)} | {"RANK"}
    began_s = time.thread_time()
    found = parse_environ(raw, wanted)
    assert time.thread_time() - began_s < 0.008, "an entry at a time takes 12 to 40 ms"
    assert found == ({"RANK": "7"} if b"RANK" in entry else {})


def test_parse_environ__the_last_value_of_a_variable_counts() -> None:
    assert parse_environ(b"A=1\0A=2\0XA=3", {"A"}) == {"A": "2"}


def test_parse_environ__values_are_cut_and_may_hold_equal_signs() -> None:
    assert parse_environ(b"A=1=2\0B\0C=" + b"x" * 999, {"A", "B", "C"}) == {
        "A": "1=2",
        "C": "x" * 200,
    }


def read_when_ready(pid: int) -> ProcessSeen | None:
    for _ in range(1000):
        if seen := procfs.read_process(Pid(pid), {"RANK"}):
            return seen
        time.sleep(0.001)
    return None


def test_read_process__a_process_that_has_just_begun_another_program_is_read_whole_or_not_at_all() -> (
    None
):
    # exec drops the old words and variables some hundred microseconds before the new ones are there
    for _ in range(60):
        with subprocess.Popen(["sleep", "9"], env={"RANK": "1"}) as child:
            try:
                seen = procfs.read_process(Pid(child.pid), {"RANK"})
            finally:
                child.kill()
        assert seen is None or (seen.argv, seen.rank_environ) == (("sleep", "9"), {"RANK": "1"})


def test_read_process__this_process_is_read_as_it_is() -> None:
    script = "import time; time.sleep(20)"
    words = [sys.executable, "-c", script, *map(str, range(30))]
    began_ns = procfs.boottime_ns()
    with subprocess.Popen(words, env={"RANK": "5", "TOKEN": "x"}) as child:
        try:
            seen = read_when_ready(child.pid)
        finally:
            child.kill()
    assert seen is not None
    assert (seen.pid, seen.ppid, seen.rank_environ) == (child.pid, os.getpid(), {"RANK": "5"})
    assert seen.argv == tuple(words[:16])
    assert began_ns <= seen.boottime_ns <= procfs.boottime_ns()


def test_start_ns__is_when_the_process_began() -> None:
    began_ns = procfs.boottime_ns()
    with subprocess.Popen(["sleep", "20"]) as child:
        seen_ns = procfs.start_ns(Pid(child.pid))
        child.kill()
    assert seen_ns is not None
    assert abs(seen_ns - began_ns) < 2_000_000_000


def test_read_process__a_process_that_is_gone_or_a_zombie_is_none() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    zombie = procfs.read_process(Pid(child.pid), {"RANK"})
    child.wait()
    assert zombie is None
    assert procfs.read_process(Pid(child.pid), {"RANK"}) is None


def test_unix_offset_s__boottime_plus_the_offset_is_unix_time() -> None:
    assert procfs.boottime_ns() / 1e9 + procfs.unix_offset_s() == pytest.approx(
        time.time(), abs=0.05
    )


_CALLED = """
import sys
open("/proc/self/comm", "wb").write(b"\\rNSpid:\\t1 1")
print("up", flush=True)
sys.stdin.read()
"""


def test_namespace_numbers__a_name_cannot_forge_the_numbers_of_its_process() -> None:
    command = [sys.executable, "-c", _CALLED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert procfs.namespace_numbers(child.pid) == (child.pid,)
        child.communicate()
    assert procfs.namespace_numbers(child.pid) == ()


def test_opened__a_name_cannot_forge_the_user_of_its_process(tmp_path: Path) -> None:
    """What the process may not open itself would be opened for it."""
    (tmp_path / "own").write_text("x")
    code = _CALLED.replace(r"\rNSpid:\t1 1", r"\rUid:\t7 7 7 7")
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        assert b"\rUid:\t7 7 7 7" in Path(f"/proc/{child.pid}/comm").read_bytes()
        path = str(tmp_path / "own")
        os.close(rank_files.opened(Pid(child.pid), path, os.O_RDONLY, pipe=False))
        child.communicate()


@given(st.binary(max_size=15).filter(lambda name: b"\n" not in name))
def test_status_numbers__the_numbers_are_those_of_their_own_line(name: bytes) -> None:
    status = b"Name:\t" + name + b"\nUmask:\t0022\nNSpid:\t4711\t12\t1\n"
    assert status_numbers(status, b"NSpid") == (4711, 12, 1)


def test_every_process__ours_and_the_first_in_order() -> None:
    found = procfs.every_process()
    assert {1, os.getpid(), os.getppid()} <= set(found)
    assert found == sorted(found)


def test_opened_folder__one_of_the_kernel_is_not_read_for_a_rank() -> None:
    with pytest.raises(rank_files.RankFileError, match="is on proc"):
        rank_files.opened_folder(Pid(os.getpid()), f"/proc/{os.getpid()}/task")


def test_opened__a_file_of_the_kernel_is_not_read_for_a_rank() -> None:
    path = f"/proc/{os.getpid()}/status"
    with pytest.raises(rank_files.RankFileError, match="is on proc"):
        rank_files.opened(Pid(os.getpid()), path, os.O_RDONLY, pipe=False)
