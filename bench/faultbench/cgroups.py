"""Control groups for one rank of a run: cgroup v1 controllers and the v2 freezer."""

from __future__ import annotations

import time
from pathlib import Path

from bench.faultbench.live import Live, RunFailed

ROOT = Path("/sys/fs/cgroup")
UNIFIED = next((p for p in (ROOT / "unified", ROOT) if (p / "cgroup.controllers").exists()), ROOT)
QUOTA_PERIOD_US = 100_000


def has_controller(name: str) -> bool:
    """Whether the cgroup v1 controller is mounted on this host."""
    return (ROOT / name / "cgroup.procs").exists()


def group(live: Live, controller: str) -> Path:
    """A group of a v1 controller for this run, removed when the run ends."""
    folder = ROOT / controller / live.tag
    folder.mkdir(exist_ok=True)
    live.undo.callback(dissolve, folder, ROOT / controller)
    return folder


def move(pids: list[int], folder: Path) -> None:
    """Put processes into a group; those that ended meanwhile are left out."""
    for pid in pids:
        try:
            (folder / "cgroup.procs").write_text(str(pid))
        except ProcessLookupError:
            continue


def dissolve(folder: Path, parent: Path) -> None:
    """Thaw a group, give its processes to `parent`, remove it; up to 5 s for dying ones."""
    for name, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        if (folder / name).exists():
            (folder / name).write_text(value)
    for _ in range(50):
        if not folder.exists():
            return
        try:
            move([int(pid) for pid in (folder / "cgroup.procs").read_text().split()], parent)
            folder.rmdir()
        except OSError:
            time.sleep(0.1)


def freeze_v1(live: Live) -> None:
    """Freeze the culprit and its workers with the cgroup v1 freezer."""
    folder, rank = group(live, "freezer"), live.run.culprit
    move([live.pid(rank), *live.workers(rank)], folder)
    live.begin_fault()
    (folder / "freezer.state").write_text("FROZEN")


def freeze_v2(live: Live) -> None:
    """Freeze the culprit in a child group of the job's own cgroup v2."""
    rank = live.run.culprit
    relative = next(
        line[3:] for line in live.launcher()["cgroup"].splitlines() if line.startswith("0::")
    )
    parent = UNIFIED / relative.lstrip("/")
    folder = parent / live.tag
    folder.mkdir()
    live.undo.callback(dissolve, folder, parent)
    move([live.pid(rank), *live.workers(rank)], folder)
    live.begin_fault()
    (folder / "cgroup.freeze").write_text("1")


def quota_1(live: Live) -> None:
    """Leave the culprit 1% of a processor."""
    folder, rank = group(live, "cpu"), live.run.culprit
    (folder / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(QUOTA_PERIOD_US // 100))
    live.begin_fault()
    move([live.pid(rank), *live.workers(rank)], folder)


def limit_memory(live: Live, pids: list[int], limit_bytes: int) -> Path:
    """Let processes use `limit_bytes` beyond what they have now (v1 does not move old pages)."""
    if not pids:
        raise RunFailed("no process to limit")
    folder = group(live, "memory")
    (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    move(pids, folder)
    return folder


def limit_rank_memory(live: Live) -> None:
    """A limit that `oom` will hit, without swap."""
    folder = limit_memory(live, [live.pid(live.run.culprit)], 256 << 20)
    (folder / "memory.swappiness").write_text("0")


def limit_worker_memory(live: Live) -> None:
    """A limit that `worker-oom` will hit, without swap."""
    folder = limit_memory(live, live.workers(live.run.culprit), 256 << 20)
    (folder / "memory.swappiness").write_text("0")


def limit_with_swap(live: Live) -> None:
    """A third of what `swap-storm` touches; the rest goes to swap."""
    limit_memory(live, [live.pid(live.run.culprit)], 32 << 20)


def throttle_disk(live: Live) -> None:
    """Let rank 0 write 10 MiB/s to the disk that holds the run's folder."""
    folder = group(live, "blkio")
    device = live.folder.stat().st_dev
    number = f"{device >> 8 & 0xFFF}:{device & 0xFF}"
    (folder / "blkio.throttle.write_bps_device").write_text(f"{number} {10 << 20}")
    move([live.pid(0)], folder)
