"""Answers of an NFS server, as its client counts them."""

from __future__ import annotations

import pytest

from kcover_ebpf.facts.host import StorageState
from kcover_ebpf.host.nfs_servers import parse_counters, parse_mount

MOUNTS = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
35 22 0:55 / /mnt/data rw,relatime shared:9 - nfs4 server:/data rw,vers=4.2
36 22 0:56 / /mnt/bucket rw,relatime - fuse.gcsfuse bucket rw
37 22 0:57 / /mnt/old rw,relatime - nfs server:/old rw,vers=3
"""
# two connections of one mount (nconnect=2), and a mount by UDP
STATS = """\
device /dev/root mounted on / with fstype ext4
device server:/data mounted on /mnt/data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,nconnect=2
\tage:\t100
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 789 0 1 0 12 500 480 0 900 0 2 0 0
\txprt:\ttcp 790 0 1 0 12 100 100 0 150 0 2 0 0
\tper-op statistics
\t        READ: 300 300 0 44400 9900 0 200 300 0
device server:/old mounted on /mnt/old with fstype nfs statvers=1.1
\txprt:\tudp 700 1 40 39 0 0 0
"""


@pytest.mark.parametrize(
    ("device", "mount"),
    [("0:55", "/mnt/data"), ("0:56", ""), ("0:57", "/mnt/old"), ("259:1", ""), ("9:9", "")],
)
def test_parse_mount__where_a_server_is_mounted(device: str, mount: str) -> None:
    assert parse_mount(MOUNTS, device) == mount


@pytest.mark.parametrize(
    ("mount", "state"),
    [
        ("/mnt/data", StorageState("0:55", 20, 580, suspended=False)),
        ("/mnt/old", StorageState("0:55", 1, 39, suspended=False)),
        ("/mnt", None),
        ("/", None),
    ],
)
def test_parse_counters__what_it_answered(mount: str, state: StorageState | None) -> None:
    assert parse_counters(STATS, mount, "0:55") == state


@pytest.mark.parametrize("cut", range(0, len(STATS), 7))
def test_parse_counters__a_text_that_is_cut_is_read_as_far_as_it_goes(cut: int) -> None:
    state = parse_counters(STATS[:cut], "/mnt/data", "0:55")
    assert state is None or state.completed_count <= 580


def test_parse_mount__a_mount_point_with_other_ends_of_lines_is_one_line() -> None:
    mounts = "35 22 0:55 / /mnt/a\x0c35\x850:56 rw - nfs4 server:/data rw\n" + MOUNTS
    assert parse_mount(mounts, "0:55") == "/mnt/a\x0c35\x850:56"
    assert parse_mount(mounts, "0:57") == "/mnt/old"
