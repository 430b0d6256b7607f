"""What a trace streams and an archive keeps of a rank: the frames of its threads, its kernels on GPUs. Pure."""

from __future__ import annotations

from kcover_ebpf.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """The frames of one thread, innermost first; empty where they were not observable."""

    pid: int
    tid: int
    rank: int | None = None
    python: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()


Dimensions = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One grid of a kernel that ran on a GPU when a rank's driver wrote a core dump of it."""

    device: int
    """Its number in the rank's own list of devices (CUDA's)."""
    name: str
    """As the program's compiler wrote it, without its arguments; an address where it has no name."""
    state: str
    """active, pending, sleeping, ended, or unknown."""
    grid: Dimensions = (0, 0, 0)
    """Blocks."""
    block: Dimensions = (0, 0, 0)
    """Threads of a block."""
    pid: int = 0
    rank: int | None = None

    @property
    def text(self) -> str:
        """For people."""
        blocks, threads = (" x ".join(map(str, size)) for size in (self.grid, self.block))
        return f"device {self.device}: {self.name} ({self.state}), {blocks} blocks of {threads} threads"
