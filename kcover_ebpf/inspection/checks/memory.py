"""Memory of the host: available, swapped out, and broken pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import LITTLE_MEMORY_SHARE, NO_MEMORY_SHARE, SWAPPED_SHARE


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """Findings for memory, swap and broken pages."""
    try:
        kib = _meminfo(options.root / "proc/meminfo")
        available, total = kib["MemAvailable"], kib["MemTotal"]
    except (OSError, KeyError, ValueError) as error:
        yield unknown(f"/proc/meminfo: {error}", "mount procfs")
        return
    part = available / total
    text = f"{available >> 10} MiB of {total >> 10} MiB are available"
    free = "find who holds the memory: ps aux --sort -rss | head"
    if part < NO_MEMORY_SHARE:
        yield failed(text, free)
    elif part < LITTLE_MEMORY_SHARE:
        yield warned(text, free)
    else:
        yield passed(text)
    yield from _swap(kib)
    if corrupted := kib.get("HardwareCorrupted", 0):
        text = f"{corrupted} KiB of memory were taken out of use after memory errors"
        yield warned(text, "have the memory module replaced; see dmesg for its name")


def _swap(kib: dict[str, int]) -> Iterator[CheckFinding]:
    total, free = kib.get("SwapTotal", 0), kib.get("SwapFree", 0)
    if total and total - free > SWAPPED_SHARE * total:
        text = f"{(total - free) >> 10} MiB of {total >> 10} MiB of swap space are used"
        yield warned(text, "a job whose memory is swapped out slows all its peers: swapoff -a")


def _meminfo(path: Path) -> dict[str, int]:
    """Name -> KiB; page counts have no unit and are kept unchanged."""
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in pairs if rest.strip()}


CHECK = Check(
    "memory",
    Cost.LIGHT,
    5.0,
    "available memory (warn below 5%, fail below 1%), swap space in use, pages taken out of use after errors",
    "`/proc/meminfo`",
    find,
)
