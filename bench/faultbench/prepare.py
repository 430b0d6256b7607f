"""Things that have to exist before a job starts: file systems that misbehave, pipes, swap."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.faultbench.job import TAG_VARIABLE, tag_value
from bench.faultbench.live import Live, RunFailed
from bench.faultbench.network_faults import run

IMAGE_BYTES = 64 << 20
FULL_IMAGE_BYTES = 24 << 20
SWAP_BYTES = 512 << 20
SWAP_NOTE = "swap-device"


def name(live: Live) -> Path:
    """A file name in the run's folder."""
    return live.folder / "file"


def fifo(live: Live) -> Path:
    """A named pipe without a writer."""
    path = live.folder / "fifo"
    os.mkfifo(path)
    return path


def big_file(live: Live) -> Path:
    """A file of 2 MiB to read slowly."""
    path = live.folder / "data"
    path.write_bytes(bytes(2 << 20))
    return path


def fuse(live: Live, manner: str) -> Path:
    """A FUSE file system whose server answers slowly, late or never."""
    mount = live.folder / "fuse"
    mount.mkdir()
    late_s = str(live.run.scenario.phase_s)
    live.undo.callback(unmount, mount)
    serving(live, "testbed.faults.fuse_server", str(mount), manner, late_s)
    return mount / "data"


def remote(live: Live) -> str:
    """The address of a server that answers after the length of the phase."""
    return serving(live, "testbed.workloads.remote", str(live.run.scenario.phase_s))


def serving(live: Live, module: str, *arguments: str) -> str:
    """Start a server, which ends with the run; the line that it prints once it serves."""
    command = [sys.executable, "-m", module, *arguments]
    variables = {**os.environ, TAG_VARIABLE: tag_value(live.tag)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True)
    live.undo.callback(ended, server)
    line = server.stdout.readline() if server.stdout else ""
    if not line:
        raise RunFailed(f"{module} did not start")
    return line.strip()


def ended(server: subprocess.Popen[str]) -> None:
    """End a server."""
    server.kill()
    server.wait()


def unmount(mount: Path) -> None:
    """Unmount now, even if processes still wait there; waiting readers get an error."""
    subprocess.run(["umount", "-f", "-l", str(mount)], check=False, capture_output=True)


def ext4(live: Live, size_bytes: int) -> Path:
    """A small ext4 on a loop device, mounted."""
    image, mount = live.folder / "ext4.img", live.folder / "ext4"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    run("mkfs.ext4", "-q", "-F", str(image))
    run("mount", "-o", "loop", str(image), str(mount))
    live.undo.callback(unmount, mount)
    return mount


def ext4_frozen(live: Live) -> Path:
    """A file on a file system that is suspended: writers wait in state D."""
    mount = ext4(live, IMAGE_BYTES)
    run("fsfreeze", "--freeze", str(mount))
    live.undo.callback(run, "fsfreeze", "--unfreeze", str(mount))
    return mount / "checkpoint"


def ext4_full(live: Live) -> Path:
    """A file on a file system too small for it."""
    return ext4(live, FULL_IMAGE_BYTES) / "checkpoint"


def swap(live: Live) -> Path:
    """Swap space on a compressed memory device, for the time of the run."""
    device = run("zramctl", "--find", "--size", str(SWAP_BYTES)).strip()
    (live.folder / SWAP_NOTE).write_text(device)  # for cleaning up after a killed bench
    live.undo.callback(run, "zramctl", "--reset", device)
    run("mkswap", device)
    run("swapon", device)
    live.undo.callback(run, "swapoff", device)
    return live.folder


PREPARE: dict[str, Callable[[Live], Path | str]] = {
    "name": name,
    "fifo": fifo,
    "big-file": big_file,
    "fuse-hung": lambda live: fuse(live, "hung"),
    "fuse-slow": lambda live: fuse(live, "slow"),
    "fuse-late-close": lambda live: fuse(live, "close"),
    "fuse-late-sync": lambda live: fuse(live, "sync"),
    "remote": remote,
    "ext4-frozen": ext4_frozen,
    "ext4-full": ext4_full,
    "swap": swap,
}
