"""The code in which a thread burns a CPU: a wait for a device or for other ranks, or its own work. Pure.

A host thread that waits for a GPU does not sleep: it spins in the driver's library and reads the clock in every
iteration (public back traces: NVIDIA/nccl issues 117, 585, 899, 901). Its registers vary like those of a computation;
the module of its instruction pointer does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from itertools import groupby

from kcover_ebpf.facts.host import Module


class Code(Enum):
    """Activity of a thread in a module; the value is the text for people."""

    # members are compared by identity; Enum's own is a call of Python for each look-up
    __hash__ = object.__hash__

    DEVICE = "waits for a device"
    COLLECTIVE = "waits in the collective library"
    MESSAGES = "waits for messages"
    PLUMBING = "any of these"
    """The C library and the vDSO: the caller decides."""
    OWN = "works"


WAITS = frozenset({Code.DEVICE, Code.COLLECTIVE, Code.MESSAGES})

# Beginnings of the names of files. The longest one that fits decides: compilers of a driver work.
_MODULES: dict[str, Code] = {
    "libcuda.so": Code.DEVICE,
    "libcudart": Code.DEVICE,
    "libnvidia-": Code.DEVICE,
    "libnvidia-ptxjitcompiler": Code.OWN,
    "libnvidia-nvvm": Code.OWN,
    "libnvidia-gpucomp": Code.OWN,
    "libhsa-runtime64": Code.DEVICE,
    "libhsakmt": Code.DEVICE,
    "libamdhip64": Code.DEVICE,
    "libze_intel_gpu": Code.DEVICE,
    "libnccl": Code.COLLECTIVE,
    "librccl": Code.COLLECTIVE,
    "libmpi": Code.MESSAGES,
    "libopen-pal": Code.MESSAGES,
    "mca_btl_": Code.MESSAGES,
    "mca_pml_": Code.MESSAGES,
    "mca_mtl_": Code.MESSAGES,
    "libucp": Code.MESSAGES,
    "libuct": Code.MESSAGES,
    "libucs": Code.MESSAGES,
    "libfabric": Code.MESSAGES,
    "libpsm2": Code.MESSAGES,
    "libibverbs": Code.MESSAGES,
    "libmlx5": Code.MESSAGES,
    "[vdso]": Code.PLUMBING,
    "[vsyscall]": Code.PLUMBING,
    "libc.": Code.PLUMBING,
    "libc-": Code.PLUMBING,
    "ld-": Code.PLUMBING,
    "libpthread": Code.PLUMBING,
    "librt.": Code.PLUMBING,
    "librt-": Code.PLUMBING,
}
SAVED_REGISTERS = 6
"""Registers that a callee saves at most on x86-64 (System V ABI, 3.2.1)."""
PREFIXES = tuple(_MODULES)
"""Beginnings of the names of files that identify a module."""


@lru_cache(maxsize=1024)
def of_module(name: str) -> Code:
    """Activity of a thread that burns in this file (its base name, as in /proc/PID/maps)."""
    fitting = [prefix for prefix in _MODULES if name.startswith(prefix)]
    return _MODULES[max(fitting, key=len)] if fitting else Code.OWN


def of_stack(words: Iterable[str]) -> Code | None:
    """Activity by the code words of a stack, innermost first; None if all is plumbing, or nothing can be concluded.

    A callee's saved registers lie before its return address, and words of earlier calls may be anywhere: the vDSO's
    clock, called from the driver's library by way of the C library, may have saved a pointer into the interpreter. So
    own code before these two is ignored; before a library that waits it decides nothing. One reading alone never
    decides.
    """
    codes = [of_module(word.rpartition("+")[0]) for word in words]
    called = [(code, len(list(group))) for code, group in groupby(codes)]
    if called and called[0][0] is Code.PLUMBING:
        del called[0]
    if not called or called[0][0] is not Code.OWN or WAITS.isdisjoint(codes):
        return called[0][0] if called else None
    follow = [code for code, _ in called[1:3]]
    was_saved = called[0][1] <= SAVED_REGISTERS and follow[0] is Code.PLUMBING
    return follow[1] if was_saved and len(follow) > 1 and follow[1] in WAITS else None


class CodeMap:
    """Addresses of the executable mappings of one process."""

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        ordered = sorted(modules, key=lambda module: module.start)
        self._starts = [module.start for module in ordered]
        self._ends = [module.end for module in ordered]
        self._codes = [of_module(module.name) for module in ordered]
        self.drives_device = Code.DEVICE in self._codes
        """True if the process has loaded the library of a device's driver or runtime."""

    def __bool__(self) -> bool:
        return bool(self._starts)

    def at(self, address: int) -> Code | None:
        """Code of an instruction address; None if nothing was mapped there when the mappings were read."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._ends[index]:
            return None
        return self._codes[index]
