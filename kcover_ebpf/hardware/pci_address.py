"""Addresses of PCI functions, as the kernel writes them: "0000:5d:00.0"."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_pci_address(text: str) -> bool:
    """Whether this names one function of a PCI device, and nothing else."""
    return _ADDRESS.fullmatch(text) is not None


def kernel_address(text: str) -> str:
    """The kernel's form of a PCI address with eight digits of domain, in capitals; empty for no address."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[:-4].lstrip('0')}{domain[-4:]}:{rest}" if colon else ""
