"""Addresses of PCI functions in the forms that kernel, NVML and tools write."""

from __future__ import annotations

import pytest

from kcover_ebpf.devices.inventory.pci import is_pci_address, kernel_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:5D:00.0", "0000:5d:00.0"),
        ("00010000:5D:00.0", "10000:5d:00.0"),
        ("0000:5d:00.0", "0000:5d:00.0"),
        ("", ""),
        ("none", ""),
    ],
)
def test_kernel_address(text: str, address: str) -> None:
    assert kernel_address(text) == address


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("0000:5d:00.0", True),
        ("10000:5d:00.7", True),
        ("0000:5D:00.0", False),
        ("0000:5d:00.8", False),
        ("0000:5d:00", False),
        ("0000:5d:00.0:pcie001", False),
        ("virtio0", False),
        ("", False),
    ],
)
def test_is_pci_address(text: str, is_one: bool) -> None:
    assert is_pci_address(text) is is_one
