"""Finds libnccl.so.2."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

from tools.gpucheck.plan import NotPossible

NAME = "libnccl.so.2"


def find() -> str:
    """The library that the loader finds, or that of the package nvidia-nccl; raises `NotPossible`."""
    try:
        ctypes.CDLL(NAME)
    except OSError:
        pass
    else:
        return NAME
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        package = None
    for folder in (package.submodule_search_locations or []) if package else []:
        if (path := Path(folder) / "lib" / NAME).exists():
            return str(path)
    raise NotPossible(f"{NAME} is not here")


def torch_problem() -> str:
    """Why torch cannot create an NCCL communicator here, as far as visible without loading it; "" if it can."""
    return "" if importlib.util.find_spec("torch") else "torch is not installed"
