"""Shared by the programs outside the job that stop its processes: which there are, and how.

A process that is gone is no error: the sensor may have ended the job.
"""

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from bench.lifebench.life import await_events, events

UNIFIED = next(
    path
    for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    if (path / "cgroup.procs").exists()
)


def ranks(after_s: float = 17.0, count: int = 4) -> list[int]:
    """The process of each rank, in order, once they have trained for the given seconds."""
    await_events("step", count)
    time.sleep(after_s)
    started = {line["rank"]: line["pid"] for line in map(json.loads, events("start"))}
    pids = [started[rank] for rank in sorted(started)]
    local = len(pids) // len(pods()) if pods() else 0
    return [
        inside(pods()[rank // local]["uid"], pid) if local else pid for rank, pid in enumerate(pids)
    ]


@cache
def pods() -> list[dict[str, str]]:
    """The pod of each host, where hosts are pods on nodes that share this machine's processes; else none."""
    path = os.environ.get("LIFE_PODS")
    return json.loads(Path(path).read_text()) if path else []


def inside(uid: str, pid: int) -> int:
    """The process that has this number in the pod."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            names = next(line for line in status.read_text().splitlines() if line[:6] == "NSpid:")
            if names.split()[-1] == str(pid) and uid in (status.parent / "cgroup").read_text():
                return int(status.parent.name)
    raise ProcessLookupError(f"no process {pid} in the pod {uid}")


def parent(pid: int) -> int:
    """The parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def whole(pids: Iterable[int]) -> list[int]:
    """The launchers and the ranks, launchers first."""
    pids = list(pids)
    return [*dict.fromkeys(map(parent, pids)), *pids]


def stop(pids: Iterable[int], apart_s: float = 0.0) -> None:
    """Suspend them, one after the other."""
    signal_all(pids, signal.SIGSTOP, apart_s)


def resume(pids: Iterable[int], apart_s: float = 0.0) -> None:
    """Let them continue."""
    signal_all(pids, signal.SIGCONT, apart_s)


def signal_all(pids: Iterable[int], number: signal.Signals, apart_s: float) -> None:
    """Send it to one after the other."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        time.sleep(apart_s)


def freeze(pids: list[int], seconds: float) -> None:
    """Freeze the control group of these processes, which have one in common, as a container's is."""
    if pods():
        freeze_container(pids[0], seconds)
        return
    line = next(
        text for text in Path(f"/proc/{pids[0]}/cgroup").read_text().splitlines() if text[0] == "0"
    )
    own = UNIFIED / line.split(":", 2)[2].lstrip("/")
    group = own / f"container-{pids[0]}"
    group.mkdir()
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    (group / "cgroup.freeze").write_text("1")
    time.sleep(seconds)
    with suppress(OSError):
        (group / "cgroup.freeze").write_text("0")
        for pid in pids:
            (own / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def freeze_container(pid: int, seconds: float) -> None:
    """Freeze the container of a process, in whichever hierarchy its runtime has made a group for it."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controller, path = line.split(":", 2)
        mount = Path("/sys/fs/cgroup", controller) if controller else UNIFIED
        for name, frozen, thawed in (
            ("freezer.state", "FROZEN", "THAWED"),
            ("cgroup.freeze", "1", "0"),
        ):
            file = mount / path.lstrip("/") / name
            if path != "/" and file.exists():
                file.write_text(frozen)
                time.sleep(seconds)
                with suppress(OSError):
                    file.write_text(thawed)
                return
    raise FileNotFoundError(f"process {pid} is in no group that can be frozen")
