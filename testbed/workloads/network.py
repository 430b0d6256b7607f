"""A network namespace per rank, joined by veth pairs on a bridge in one more namespace.

Nothing of the host's own network is touched. All names start with the caller's prefix, so that
what a killed launcher left behind can be found and removed by name.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

DEVICE = "eth0"
SWITCH = "-sw"
PORT = "port"


def address(rank: int) -> str:
    """The address of a rank in its namespace."""
    return f"10.77.0.{rank + 1}"


def name(prefix: str, rank: int) -> str:
    """The name of a rank's network namespace."""
    return f"{prefix}-r{rank}"


def inside(prefix: str, rank: int) -> list[str]:
    """The command prefix that runs a program in a rank's namespace; it keeps the process id."""
    return ["ip", "netns", "exec", name(prefix, rank)]


def ip(*words: str) -> None:
    """Run `ip`; raises subprocess.CalledProcessError with its message when it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def create(prefix: str, world: int) -> None:
    """Make the namespaces of ranks 0 .. world-1 and the switch between them."""
    switch = prefix + SWITCH
    ip("netns", "add", switch)
    ip("-n", switch, "link", "add", "bridge", "type", "bridge")
    ip("-n", switch, "link", "set", "bridge", "up")
    for rank in range(world):
        space, port = name(prefix, rank), f"{PORT}{rank}"
        # The host's name must lead to the rank's own address: gloo and JAX look it up.
        etc = Path("/etc/netns") / space
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{address(rank)} {socket.gethostname()}\n")
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        peer = ["type", "veth", "peer", "name", port, "netns", switch]
        ip("-n", space, "link", "add", DEVICE, *peer)
        ip("-n", space, "addr", "add", f"{address(rank)}/24", "dev", DEVICE)
        ip("-n", space, "link", "set", DEVICE, "up")
        ip("-n", switch, "link", "set", port, "master", "bridge")
        ip("-n", switch, "link", "set", port, "up")


def remove(prefix: str) -> None:
    """Remove every namespace whose name starts with `prefix`, and its files; none is fine too."""
    listing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for line in listing.stdout.splitlines():
        if line.startswith(prefix + "-"):
            subprocess.run(["ip", "netns", "del", line.split()[0]], check=False)
    for etc in Path("/etc/netns").glob(prefix + "-*"):
        (etc / "hosts").unlink(missing_ok=True)
        etc.rmdir()
