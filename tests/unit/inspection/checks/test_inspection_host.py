"""Checks of the host itself: storage, memory, clock, stuck threads, peers."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from kcover_ebpf.facts.health import Result
from kcover_ebpf.inspection.checks import clock, d_state, memory, peers, space, storage
from kcover_ebpf.inspection.mounts import Mount, find_mounts
from tests.unit.support.inspection_hosts import found, write

PASS, WARN, FAIL, UNKNOWN = Result.PASS, Result.WARN, Result.FAIL, Result.UNKNOWN
NFS = "40 1 0:50 / /data rw,relatime - nfs4 filer:/export rw,vers=4.2"


def mount(root: Path, *lines: str) -> Path:
    """Returns the folder that is the root of the mounts."""
    write(root / "proc/1/mountinfo", "\n".join(lines))
    top = root / "proc/1/root"
    top.mkdir(parents=True)
    return top


def test_find_mounts__mounts_are_described_once(tmp_path: Path) -> None:
    place = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount"
    top = mount(
        tmp_path,
        "22 1 0:5 / /proc rw - proc proc rw",
        "23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        "24 23 254:0 /x /bind rw,relatime - ext4 /dev/vda rw",
        NFS.replace("/data", r"/my\040data"),
        f"41 1 0:50 / {place} rw,relatime - nfs4 filer:/export rw",
        "nonsense",
    )
    write(top / place[1:] / "../vol_data.json", '{"driverName": "nfs.csi.k8s.io"}')
    found_mounts = find_mounts(tmp_path)
    assert [other_mount.label for other_mount in found_mounts] == [
        "/ (ext4, /dev/vda)",
        f"{place} (nfs4, filer:/export, CSI driver nfs.csi.k8s.io)",
    ]
    assert [other_mount.is_network for other_mount in found_mounts] == [False, True]


def test_find_mounts__a_client_in_user_space_may_name_no_subtype(tmp_path: Path) -> None:
    kinds = enumerate(("fuse", "fuse.s3fs", "virtiofs"))
    mount(tmp_path, *(f"40 1 0:{n} / /s{n} rw - {kind} mountpoint-s3 rw" for n, kind in kinds))
    assert [found_mount.is_network for found_mount in find_mounts(tmp_path)] == [True] * 3


def test_inspection_host__storage_that_answers(tmp_path: Path) -> None:
    (mount(tmp_path, NFS) / "data").mkdir()
    one = found(storage.CHECK, tmp_path, write_to=(tmp_path,))
    assert one.result is PASS
    assert "/data (nfs4, filer:/export): answered in" in one.evidence
    assert "1 MiB written in" in one.evidence
    assert [path.name for path in tmp_path.iterdir()] == ["proc"]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file system is there, and says that it is none any more."""

    def refuse(_: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "statvfs", refuse)
    monkeypatch.setattr(Mount, "is_in_place", lambda _: True)


@pytest.mark.usefixtures("gone")
def test_inspection_host__storage_that_is_gone(tmp_path: Path) -> None:
    mount(tmp_path, NFS)
    one = found(storage.CHECK, tmp_path)
    assert one.result is FAIL
    assert one.evidence == "/data (nfs4, filer:/export): no answer: Stale file handle"


def test_inspection_host__what_another_mount_hides_is_not_gone(tmp_path: Path) -> None:
    """It stays in the list of mounts; nor is it one that was unmounted meanwhile."""
    mount(tmp_path, "23 1 254:0 / / rw - ext4 /dev/vda rw", NFS, xfs("/disk"))
    for check in (storage.CHECK, space.INODES_CHECK):
        one = found(check, tmp_path)
        assert one.result is not FAIL
        assert len(one.evidence.splitlines()) == 1


def test_inspection_host__storage_that_hangs_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    top = mount(tmp_path, NFS, "23 1 254:0 / / rw - ext4 /dev/vda rw")
    (top / "data").mkdir()
    released, ask = threading.Event(), os.statvfs

    def hang(path: Path) -> os.statvfs_result:
        if path.name == "data":
            released.wait(60)
        return ask(path)

    monkeypatch.setattr(os, "statvfs", hang)
    monkeypatch.setattr(storage, "STORAGE_PATIENCE_S", 0.2)
    one = found(storage.CHECK, tmp_path)
    released.set()
    assert one.result is FAIL
    assert one.evidence.startswith("/data (nfs4, filer:/export): no answer")
    assert "/ (ext4, /dev/vda): answered" in one.evidence


@pytest.mark.parametrize("shown", ["ro,errors=remount-ro", "rw,errors=remount-ro,emergency_ro"])
def test_inspection_host__a_disk_that_became_read_only(tmp_path: Path, shown: str) -> None:
    mount(tmp_path, f"23 1 254:0 / / rw,relatime - ext4 /dev/vda {shown}")
    assert "became read-only" in found(storage.CHECK, tmp_path).evidence


def test_inspection_host__a_disk_that_was_mounted_read_only(tmp_path: Path) -> None:
    mount(tmp_path, "23 1 254:0 / / ro,relatime - ext4 /dev/vda ro")
    assert found(storage.CHECK, tmp_path).result is PASS


@pytest.mark.parametrize(
    ("number", "result"),
    [(errno.ENOSPC, FAIL), (errno.EROFS, FAIL), (errno.EACCES, UNKNOWN), (errno.ENOENT, UNKNOWN)],
)
def test_inspection_host__a_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, result: Result
) -> None:
    (mount(tmp_path, NFS) / "data").mkdir()

    def refuse(**_: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    one = found(storage.CHECK, tmp_path, write_to=(tmp_path,))
    assert (one.result, "cannot write" in one.evidence) == (result, True)


def test_inspection_host__a_write_that_hangs_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount(tmp_path, "23 1 254:0 / / rw - ext4 /dev/vda rw")
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    slow.mkdir()
    quick.mkdir()
    released, make = threading.Event(), tempfile.TemporaryFile

    def hang(**where: Path) -> object:
        if where["dir"] == slow:
            released.wait(60)
        return make(dir=where["dir"])

    monkeypatch.setattr(tempfile, "TemporaryFile", hang)
    monkeypatch.setattr(storage, "STORAGE_WRITE_PATIENCE_S", 0.2)
    one = found(storage.CHECK, tmp_path, write_to=(slow, quick))
    released.set()
    assert one.result is FAIL
    assert one.evidence.startswith(f"{slow}: 1 MiB is not written and read within 0.2 s")
    assert f"{quick}: 1 MiB written in" in one.evidence


def test_inspection_host__a_link_of_the_host_is_not_followed_into_our_own_files(
    tmp_path: Path,
) -> None:
    top = mount(tmp_path, "23 1 254:0 / / rw - ext4 /dev/vda rw")
    (top / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path)
    one = found(storage.CHECK, tmp_path, write_to=(tmp_path / "data/proc",))
    assert (one.result, "passes a link" in one.evidence) == (UNKNOWN, True)


@pytest.mark.parametrize(
    ("free", "inodes", "result"),
    [(0.5, 0.5, PASS), (0.05, 0.5, WARN), (0.5, 0.01, WARN), (0, 0.5, FAIL), (0.5, 0, FAIL)],
)
def test_inspection_host__room_on_disks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, inodes: float, result: Result
) -> None:
    mount(tmp_path, "23 1 254:0 / / rw - ext4 /dev/vda rw", NFS)
    room = int(free * 1000)
    left = int(inodes * 1000)
    answer = os.statvfs_result((4096, 4096, 1000, room, room, 1000, left, left, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    one = found(space.INODES_CHECK, tmp_path)
    assert one.result is result
    assert "/data" not in one.evidence


PODS = "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount"
STAGED = "/var/lib/kubelet/plugins/kubernetes.io/csi/ebs.csi.aws.com/a1/globalmount"
SUBPATH = "/data/k/pods/u/volume-subpaths/pv-1/main/0"


def xfs(place: str, options: str = "rw", more: str = "rw") -> str:
    return f"50 1 259:1 / {place} {options},relatime - xfs /dev/nvme1n1 {more}"


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ((xfs(PODS),), WARN),
        ((xfs(STAGED), xfs(PODS), xfs(SUBPATH)), WARN),
        ((xfs("/var/lib/kubelet/plugins/csi-driver.example/mnt"),), WARN),
        ((xfs("/data"),), FAIL),
        ((xfs(PODS), xfs("/data")), FAIL),
        ((xfs("/var/lib/kubelet"), xfs(SUBPATH)), FAIL),
        ((xfs("/var/lib/kubelet/pods"),), FAIL),
        ((xfs("/data", "ro"), xfs(PODS)), FAIL),
        ((xfs("/data", "ro"),), UNKNOWN),
        ((xfs("/data", "rw", "ro"),), UNKNOWN),
    ],
)
def test_inspection_host__a_full_volume_of_pods_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: tuple[str, ...], result: Result
) -> None:
    mount(tmp_path, *lines)
    answer = os.statvfs_result((4096, 4096, 1000, 0, 0, 1000, 500, 500, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    one = found(space.INODES_CHECK, tmp_path)
    assert one.result is result
    assert ("a volume of pods" in one.evidence) == (result is WARN)
    assert ("remove old images" in one.advice) == (result is FAIL)


@pytest.mark.parametrize(
    ("places", "result"),
    [
        (["/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/home"], WARN),
        (["/var/lib/kubelet/pods/u/volumes/kubernetes.io~nfs/home", "/data"], FAIL),
        (["/data"], FAIL),
    ],
)
@pytest.mark.usefixtures("gone")
def test_inspection_host__a_server_that_only_pods_mounted_is_no_fault_of_the_node(
    tmp_path: Path, places: list[str], result: Result
) -> None:
    mount(tmp_path, *(NFS.replace("/data", place) for place in places))
    one = found(storage.CHECK, tmp_path)
    assert one.result is result
    assert "no answer: Stale file handle" in one.evidence


def test_inspection_host__a_volume_of_pods_that_became_read_only_is_a_warning(
    tmp_path: Path,
) -> None:
    top = mount(tmp_path, xfs(PODS, "rw", "ro"))
    (top / PODS[1:]).mkdir(parents=True)
    one = found(storage.CHECK, tmp_path)
    assert (one.result, "became read-only" in one.evidence) == (WARN, True)


def test_inspection_host__shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert found(space.SHM_CHECK, tmp_path).result is FAIL
    (tmp_path / "dev/shm").mkdir(parents=True)
    for free, result in ((900, PASS), (50, WARN), (0, FAIL)):
        answer = os.statvfs_result((4096, 4096, 1000, free, free, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _, answer=answer: answer)
        assert found(space.SHM_CHECK, tmp_path).result is result


@pytest.mark.parametrize(
    ("available", "swap_free", "corrupted", "result", "words"),
    [
        (500_000, 100_000, 0, PASS, "488 MiB of 976 MiB are available"),
        (40_000, 100_000, 0, WARN, "39 MiB of 976 MiB"),
        (5_000, 100_000, 0, FAIL, "4 MiB of 976 MiB"),
        (500_000, 50_000, 0, WARN, "of swap space are used"),
        (500_000, 100_000, 4, WARN, "4 KiB of memory were taken out of use"),
    ],
)
def test_inspection_host__memory(
    tmp_path: Path, available: int, swap_free: int, corrupted: int, result: Result, words: str
) -> None:
    lines = (
        f"MemTotal: 1000000 kB\nMemAvailable: {available} kB\nSwapTotal: 100000 kB\n"
        f"SwapFree: {swap_free} kB\nHardwareCorrupted: {corrupted} kB\nHugePages_Total: 0"
    )
    write(tmp_path / "proc/meminfo", lines)
    one = found(memory.CHECK, tmp_path)
    assert one.result is result
    assert words in one.evidence


def test_inspection_host__memory_that_cannot_be_read(tmp_path: Path) -> None:
    assert found(memory.CHECK, tmp_path).result is UNKNOWN


@pytest.mark.parametrize(
    ("status", "offset", "maxerror", "result"),
    [
        (0, 90_000, 1_000, PASS),
        (0, 200_000, 1_000, WARN),
        (0x2000, 90_000_000, 1_000, PASS),
        (0x2000, -200_000_000, 1_000, WARN),
        (0x40, 0, 1_000, WARN),
    ],
)
def test_judged__the_clock(status: int, offset: int, maxerror: int, result: Result) -> None:
    timex = clock.Timex(status=status, offset=offset, maxerror=maxerror)
    assert clock.judged(timex).result is result


@pytest.mark.parametrize(
    ("silent_s", "result"), [(1024, PASS), (2048, PASS), (8 * 1024, PASS), (3 * 3600, WARN)]
)
def test_judged__a_clock_that_is_no_longer_corrected(silent_s: int, result: Result) -> None:
    """As under chrony, which leaves the kernel's own offset at zero."""
    own_us, a_second_us = 50_000, 500
    timex = clock.Timex(status=0x2001, offset=0, maxerror=own_us + a_second_us * silent_s)
    found = clock.judged(timex)
    assert found.result is result
    if result is WARN:
        assert found.evidence.startswith("not corrected for about 3.0 h: error at most 5450.0 ms")


def test_inspection_host__the_clock_of_this_machine_is_read(tmp_path: Path) -> None:
    assert found(clock.CHECK, tmp_path).result in (PASS, WARN)


def thread(
    root: Path, tid: int, state: str, flags: int = 0, switches: int = 5, process: int | None = None
) -> Path:
    """Alone in its process, else a second one in `process`, whose own state is not D."""
    pid, count = (tid, 1) if process is None else (process, 2)
    folder = root / f"proc/{pid}/task/{tid}"
    line = "{} (a) rank) {} 1 1 1 0 -1 {} 0 0 0 0 0 0 0 0 20 0 {} 0"
    write(folder / "stat", line.format(tid, state, flags, count))
    leader = state if process is None else "S"
    write(root / f"proc/{pid}/stat", line.format(pid, leader, flags, count))
    write(folder / "status", f"Name: x\nvoluntary_ctxt_switches:\t{switches}")
    write(folder / "wchan", "nfs_wait_bit_killable")
    return folder


def test_inspection_host__threads_that_are_stuck(tmp_path: Path) -> None:
    for tid in range(40, 47):
        thread(tmp_path, tid, "D")
    one = found(d_state.CHECK, tmp_path)
    assert one.result is WARN
    assert "(a) rank) is in D for over 5 s in nfs_wait_bit_killable" in one.evidence
    assert "7 threads are in D" in one.evidence
    assert len(one.evidence.splitlines()) == 6
    assert "a storage server does not answer" in one.advice


def test_inspection_host__a_stuck_thread_of_a_process_whose_first_thread_is_not(
    tmp_path: Path,
) -> None:
    thread(tmp_path, 41, "D", process=40)
    thread(tmp_path, 42, "S", process=40)
    one = found(d_state.CHECK, tmp_path)
    assert one.result is WARN
    assert one.evidence.startswith("thread 41 (a) rank) is in D")


def test_inspection_host__threads_of_the_kernel_and_single_threads_cost_no_reading_of_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    thread(tmp_path, 41, "S")
    thread(tmp_path, 2, "S", flags=0x00200000)
    thread(tmp_path, 44, "S", process=43)
    opened, real = list[str](), os.open

    def watched(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        opened.append(str(path))
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watched)
    assert found(d_state.CHECK, tmp_path).result is PASS
    assert sorted(opened[1:]) == ["2/stat", "41/stat", "43/stat", "43/task", "44/stat"]


def test_inspection_host__threads_that_are_not_stuck(tmp_path: Path) -> None:
    thread(tmp_path, 41, "S")
    thread(tmp_path, 2, "D", flags=0x00200000)  # of the kernel
    thread(tmp_path, 43, "D")

    def pause(_: float) -> None:
        thread(tmp_path, 43, "D", switches=6)  # it ran since

    assert found(d_state.CHECK, tmp_path, pause=pause).result is PASS
    thread(tmp_path, 43, "S")
    (tmp_path / "proc/2/stat").unlink()  # as in a pid namespace other than the host's
    assert found(d_state.CHECK, tmp_path).result is UNKNOWN


def test_inspection_host__peers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        one = found(peers.CHECK, tmp_path, peers=(("127.0.0.1", port),))
        assert one.result is PASS
        assert "path MTU 65535" in one.evidence
    one = found(peers.CHECK, tmp_path, peers=(("127.0.0.1", port),))
    assert (one.result, "Connection refused" in one.evidence) == (FAIL, True)
    one = found(peers.CHECK, tmp_path, peers=(("no.such.host.invalid", 1),))
    assert (one.result, "no address" in one.evidence) == (FAIL, True)
