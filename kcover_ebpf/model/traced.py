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
    """CUDA's number of the GPU in the rank's own list of devices."""
    name: str
    """Name from the program's compiler, without arguments; an address if the kernel has no name."""
    state: str
    """active, pending, sleeping, ended, or unknown."""
    grid: Dimensions = (0, 0, 0)
    """Number of blocks in each dimension."""
    block: Dimensions = (0, 0, 0)
    """Number of threads of a block in each dimension."""
    pid: int = 0
    rank: int | None = None

    @property
    def text(self) -> str:
        """One line: device, kernel, state, and how many blocks of how many threads."""
        blocks, threads = (" x ".join(map(str, size)) for size in (self.grid, self.block))
        return f"device {self.device}: {self.name} ({self.state}), {blocks} blocks of {threads} threads"
