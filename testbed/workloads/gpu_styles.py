"""How ranks wait for devices that are stubs, and what the launcher gives them. No torch."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

CUDA, NCCL = "libcuda.so.1", "libnccl.so.2"
STUBS = Path(__file__).parent / "stubs"
MEMORY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Style:
    """`wait`: in a loop that asks the clock, that yields, that queries and naps, or asleep until it is woken.

    `host_share`: of a step, in which the host launches kernels; `proxy`: a thread of NCCL turns while an operation is
    open; `ras`: NCCL answers for its counts; `graph`: steps are replayed, so NCCL is not called.
    """

    wait: str
    host_share: float = 0.4
    proxy: bool = False
    ras: bool = False
    graph: bool = False


STYLES = {
    "cuda-spin": Style("spin", ras=True),
    "cuda-yield": Style("yield", proxy=True),
    "cuda-nap": Style("nap", ras=True),
    "cuda-block": Style("block", proxy=True),
    "cuda-graph": Style("spin", host_share=0.05, ras=True, graph=True),
}
"""By the framework's name in the bench."""


def build(library: str, folder: Path) -> Path:
    """The stub of `CUDA` or `NCCL`, built in a folder by its real name."""
    binary, source = folder / library, STUBS / f"{library.partition('.')[0]}.c"
    compiler = shutil.which("cc") or shutil.which("clang-14") or "cc"
    options = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-pthread"]
    command = [compiler, *options, "-o", str(binary), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return binary


def variables(name: str, folder: Path, ras_port: int) -> dict[str, str]:
    """What ranks of that style need in their environment; builds the stubs in `folder`."""
    style, memory = STYLES[name], folder / "memory"
    memory.write_bytes(bytes(MEMORY_BYTES))
    for library in (CUDA, NCCL):
        build(library, folder)
    return {
        "GPU_STYLE": name,
        "GPU_STUBS": str(folder),
        "NCCL_STUB_MEMORY": str(memory),
        "NCCL_STUB_PROXY": str(int(style.proxy)),
        "NCCL_RAS_ENABLE": str(int(style.ras)),
        "NCCL_RAS_ADDR": f"127.0.0.1:{ras_port}",
    }
