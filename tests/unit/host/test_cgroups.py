"""Which cgroup mounts a host has, and the processes of a tree of groups."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.errors import UsageError
from kcover_ebpf.host import cgroups, process_tree, terminate
from kcover_ebpf.host.cgroups import CgroupTarget, Hierarchy
from kcover_ebpf.host.process_tree import PidTarget
from tests.unit.support.patience import soon

V2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = """\
30 25 0:27 / /sys/fs/cgroup ro,nosuid shared:5 - tmpfs tmpfs ro,mode=755
32 30 0:29 / /sys/fs/cgroup/systemd rw shared:7 - cgroup cgroup rw,name=systemd
31 30 0:28 / /sys/fs/cgroup/unified rw,relatime shared:6 - cgroup2 cgroup2 rw
35 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
"""
CONTAINER = "610 605 0:26 /docker/0a1b /sys/fs/cgroup ro master:4 - cgroup2 cgroup rw\n"


def test_hierarchies__mounts_of_a_v2_host() -> None:
    assert cgroups.hierarchies(V2) == (Hierarchy(Path("/sys/fs/cgroup"), "/", unified=True),)


def test_hierarchies__v2_comes_first_on_a_hybrid_host() -> None:
    found = cgroups.hierarchies(HYBRID)
    assert [hierarchy.mount.name for hierarchy in found] == ["unified", "systemd", "cpu,cpuacct"]
    assert [hierarchy.unified for hierarchy in found] == [True, False, False]


def test_hierarchies__a_container_sees_its_part_of_the_hierarchy() -> None:
    (hierarchy,) = cgroups.hierarchies(CONTAINER)
    assert hierarchy.directory("/docker/0a1b/job") == Path("/sys/fs/cgroup/job")
    assert hierarchy.directory("/docker/0a1b") == Path("/sys/fs/cgroup")


def test_hierarchies__a_mount_point_with_a_space() -> None:
    (hierarchy,) = cgroups.hierarchies("1 2 0:3 / /mnt/a\\040b rw - cgroup2 x rw\n")
    assert hierarchy.mount == Path("/mnt/a b")


def test_hierarchies__no_mount() -> None:
    assert cgroups.hierarchies("30 25 0:27 / / rw - ext4 /dev/vda rw\n") == ()


@pytest.mark.parametrize(
    ("limits", "least"),
    [
        ({"pods": "max\n", "pods/agent": "268435456\n"}, 256 << 20),
        ({"pods": "1024\n", "pods/agent": "268435456\n"}, 1024),
        ({"pods": "max\n", "pods/agent": "max\n"}, None),
        ({}, None),
    ],
)
def test_memory_limit_bytes__the_least_of_our_group_and_those_above_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: dict[str, str], least: int | None
) -> None:
    for group, text in limits.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "memory.max").write_text(text)
    mounted = (Hierarchy(tmp_path, "/", unified=True), Hierarchy(tmp_path, "/", unified=False))
    monkeypatch.setattr(cgroups, "_mounted", lambda: mounted)
    monkeypatch.setattr(cgroups, "_own_v2", lambda: "/pods/agent")
    assert cgroups.memory_limit_bytes() == least


@pytest.mark.parametrize("name", ["", "nothing/here", "/proc", "../..", "a\0b"])
def test_find__an_unknown_group_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="no cgroup"):
        cgroups.find(name)


@pytest.fixture
def group() -> Iterator[Path]:
    path = cgroups.make_for_job("kcover-test", os.getpid())
    assert path is not None
    yield path
    terminate.kill_whole(CgroupTarget(path, "").pids, None, 5.0)
    deadline = time.monotonic() + 5
    while not cgroups.remove(path):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sleeper_in(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], preexec_fn=lambda: cgroups.join(path))  # noqa: PLW1509


@pytest.mark.needs("root", "cgroup2")
def test_remove__processes_of_a_group_and_of_those_below(group: Path) -> None:
    below = group / "a" / "b"
    below.mkdir(parents=True)
    with sleeper_in(group) as one, sleeper_in(below) as two:
        try:
            assert cgroups.processes(group) == {one.pid, two.pid}
            assert CgroupTarget(group, "", frozenset({one.pid})).pids() == {two.pid}
            assert not cgroups.remove(group)
        finally:
            one.kill()
            two.kill()


@pytest.mark.needs("root", "cgroup2")
def test_join__a_group_is_gone_with_its_last_member_and_not_with_the_one_that_was_asked(
    group: Path,
) -> None:
    with sleeper_in(group) as one, sleeper_in(group) as two, sleeper_in(group) as ours:
        target = CgroupTarget(group, "", frozenset({ours.pid}))
        try:
            assert not target.gone()
            for process in (one, two):
                assert not target.gone()
                process.kill()
                process.wait()
            assert target.gone()
        finally:
            for process in (one, two, ours):
                process.kill()
    assert target.gone()


@pytest.mark.needs("root", "cgroup2")
def test_is_root__a_group_is_found_by_its_directory_and_by_its_name(group: Path) -> None:
    assert cgroups.find(str(group)) == group
    (mount,) = (hierarchy for hierarchy in cgroups.hierarchies(_own_mounts()) if hierarchy.unified)
    assert cgroups.find("/" + str(group.relative_to(mount.mount))) == group
    assert not cgroups.is_root(group)
    assert cgroups.is_root(mount.mount)


def _own_mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


@pytest.mark.needs("root", "cgroup2")
def test_remove__a_removed_group_is_empty() -> None:
    path = cgroups.make_for_job("kcover-test-gone", os.getpid())
    assert path is not None
    target = CgroupTarget(path, "")
    assert cgroups.remove(path)
    assert target.pids() == set()
    assert cgroups.remove(path)


@pytest.mark.needs("root", "cgroup2")
def test_make_for_job__what_a_killed_sensor_and_supervisor_left_is_swept(group: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = group.parent / f"kcover-sweep-{gone.pid}"
    mine = group.parent / f"kcover-sweep-{os.getppid()}"
    left.mkdir()
    mine.mkdir()
    made = cgroups.make_for_job("kcover-sweep", os.getpid())
    assert made is not None
    try:
        assert not left.exists()
        assert mine.exists()
    finally:
        mine.rmdir()
        made.rmdir()


@pytest.mark.needs("root", "cgroup2")
@pytest.mark.parametrize("as_one", [True, False])
def test_cgroup_target__all_are_killed_even_while_they_fork(group: Path, as_one: bool) -> None:
    script = "while :; do (sleep 0.01; sleep 60) & sleep 0.005; done"
    forker = subprocess.Popen(["sh", "-c", script], preexec_fn=lambda: cgroups.join(group))  # noqa: PLW1509
    target = CgroupTarget(group, "")
    soon(lambda: len(target.pids()) > 5)
    assert terminate.kill_whole(target.pids, group if as_one else None, 5.0) == set()
    assert target.pids() == set()
    assert forker.wait() == -9


def test_read_stat__a_process_tree_keeps_the_orphans_it_has_seen() -> None:
    script = "sh -c 'sleep 60 & echo $!; sleep 60' & wait"
    top = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert top.stdout is not None
    orphan = int(top.stdout.readline())
    target = PidTarget(top.pid, "")
    try:
        members = target.pids()
        assert len(members) >= 3
        assert {top.pid, orphan} <= members
        middle = process_tree.read_stat(orphan)
        assert middle is not None
        os.kill(middle.ppid, 9)
        deadline = time.monotonic() + 5
        while middle.ppid in target.pids():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert orphan in target.pids()
        assert not target.gone()
    finally:
        assert terminate.kill_whole(target.pids, None, 5.0) == set()
        top.wait()
        top.stdout.close()
    assert target.gone()


def test_pid_target__excluded_processes_and_theirs_are_no_members() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"]) as other:
        try:
            time.sleep(0.2)
            all_of_us = PidTarget(os.getpid(), "").pids()
            assert other.pid in all_of_us
            without = PidTarget(os.getpid(), "", frozenset({other.pid})).pids()
            assert os.getpid() in without
            assert not {other.pid} & without
            assert not any(other.pid in process_tree.ancestors(pid) for pid in without)
        finally:
            assert terminate.kill_whole(PidTarget(other.pid, "").pids, None, 5.0) == set()


def test_send__a_recycled_pid_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            terminate.send(set, {stranger.pid, 2**22 - 1}, signal.SIGKILL)
            time.sleep(0.05)
            assert stranger.poll() is None
        finally:
            stranger.kill()


@pytest.mark.parametrize(
    ("pid", "message"),
    [(2**22 - 1, "no process"), (2, "kernel thread")],
)
def test_check_pid__pids_that_cannot_be_watched(pid: int, message: str) -> None:
    if pid == 2 and process_tree.read_stat(2) is None:
        pytest.skip("needs kthreadd: this pid namespace has no kernel threads")
    with pytest.raises(UsageError, match=message):
        process_tree.check_pid(pid)


def test_hierarchies__a_mount_point_of_other_letters_and_one_that_is_no_text() -> None:
    mounts = (
        "30 22 0:26 / /sys/fs/m\u00fc\\040ller rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
        "31 22 0:27 / /tmp/a\x0cb\udcff rw - tmpfs x rw\n - cgroup2\n"
    )
    (found,) = cgroups.hierarchies(mounts)
    assert found.mount == Path("/sys/fs/m\u00fc ller")


def lives(witness: process_tree.Witness) -> bool:
    return witness.lives


def test_witness__lives_until_its_process_is_a_zombie_and_is_none_without_one() -> None:
    witness = process_tree.Witness()
    assert not lives(witness)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        witness.hold(sleeper.pid)
        assert lives(witness)
        sleeper.kill()
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert not lives(witness)
    assert not lives(witness)
    witness.hold(sleeper.pid)
    assert not lives(witness)


def test_witness__of_another_process_says_nothing_of_the_one_before() -> None:
    witness = process_tree.Witness()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        witness.hold(sleeper.pid)
        witness.hold(os.getpid())
        sleeper.kill()
    assert lives(witness)
    witness.close()
    assert not lives(witness)
