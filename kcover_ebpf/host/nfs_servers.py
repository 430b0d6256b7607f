"""An NFS client's counters for its server: requests sent and answers received.

Reading them does not contact the server, so it works while the server is down.
"""

from __future__ import annotations

from kcover_ebpf.facts.host import StorageState
from kcover_ebpf.host import proc_text
from kcover_ebpf.host.bounded import read_text
from kcover_ebpf.ids import Pid

# columns of sends and receives in net/sunrpc/xprtsock.c and xprtrdma/transport.c, *_print_stats
_COLUMNS = {"tcp": (5, 6), "rdma": (5, 6), "udp": (2, 3)}


def nfs_state(pid: Pid, device: str) -> StorageState | None:
    """Counters of the mount with this MAJOR:MINOR, as `pid` sees it; None if it is not an NFS mount or unreadable."""
    mount = parse_mount(read_text(f"/proc/{pid}/mountinfo"), device)
    if not mount:
        return None
    return parse_counters(read_text(f"/proc/{pid}/mountstats"), mount, device)


def parse_mount(text: str, device: str) -> str:
    """Mount point of an NFS file system in the notation of mountinfo and mountstats; empty if it is not one."""
    for mount_line in proc_text.mountinfo(text):
        if mount_line.device == device:
            return mount_line.place if mount_line.kind in ("nfs", "nfs4") else ""
    return ""


def parse_counters(text: str, mount: str, device: str) -> StorageState | None:
    """Sums over all connections of a mount, from /proc/PID/mountstats.

    Retransmitted requests count as in flight forever.
    """
    sent = answered = 0
    found = here = False
    for line in text.split("\n"):
        if line.startswith("device "):
            here = f" mounted on {mount} with fstype nfs" in line
            continue
        word, _, rest = line.strip().partition(":")
        part = rest.split()
        columns = _COLUMNS.get(part[0]) if word == "xprt" and part else None
        if not here or columns is None or len(part) <= columns[1] + 1:
            continue
        counts = [part[1 + column] for column in columns]
        if all(count.isdecimal() for count in counts):
            found = True
            sent += int(counts[0])
            answered += int(counts[1])
    if not found:
        return None
    return StorageState(device, max(0, sent - answered), answered, suspended=False)
