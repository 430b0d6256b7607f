"""Takes a test bed down, in any condition: only the cache remains.

It needs no list of what was made: the processes are those in the test bed's cgroup, the mounts of a
node are in a mount namespace that ends with its last process, and the rest carries the name.
"""

from __future__ import annotations

import os
from pathlib import Path

from testbed.cluster import cache, cgroups, network, state
from testbed.cluster.errors import Failure
from testbed.cluster.layout import Bed


def bring_down(bed: Bed) -> bool:
    """Remove everything; returns whether there was anything."""
    folder = Path(state.owner(bed) or bed.folder)
    found = bed.folder.exists() or os.path.lexists(bed.mark) or bool(cgroups.members(bed.cgroup))
    cgroups.kill(bed.cgroup)
    network.remove_all(bed)
    cgroups.remove(bed.cgroup)
    for path in {folder, bed.folder}:
        _check_no_mounts(path)
        cache.remove(path)
    bed.mark.unlink(missing_ok=True)
    return found


def _check_no_mounts(folder: Path) -> None:
    """Never walk into a mount while deleting."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        where = Path(line.split()[1])
        if where.is_relative_to(folder):
            raise Failure(f"{where} is a mount that the test bed did not make: unmount it first")
