"""Parsers of what is between a job and its devices: GPU exporters, libraries that a job has mapped."""

from __future__ import annotations

import json
import os
from unittest.mock import patch

from kcover_ebpf.api.codec import encode
from kcover_ebpf.collectives.nccl import mapped_libraries
from kcover_ebpf.devices.telemetry import helper
from kcover_ebpf.devices.telemetry.dcgm_source import DcgmSource
from kcover_ebpf.devices.telemetry.watch import GpuTelemetry, TelemetryOptions
from kcover_ebpf.host.elf_functions import ElfError, function_offsets
from kcover_ebpf.host.open_files import OpenFiles
from tests.fuzz.target import Target, folder, text

_FUNCTIONS = ("ncclAllReduce", "ncclSend")
_OPTIONS = TelemetryOptions(1.0)


def _exporter(data: bytes) -> None:
    """Read twice, a minute apart, because rates are added up, and printed as the helper prints it for the agent."""
    source = DcgmSource("http://x/metrics", ["GPU-7c0e-0"])
    with patch.object(source, "_fetched", lambda: text(data)):
        for _ in range(2):
            _lines(json.dumps(encode(helper.line_of(source.readings))).encode())
            assert source._read_s is not None
            source._read_s -= 60.0


def _lines(data: bytes) -> None:
    telemetry = GpuTelemetry(_OPTIONS, tuple, OpenFiles())
    for line in data.split(b"\n"):
        telemetry._take(line)
    for state in telemetry.latest.gpus:
        assert state.reading.device.isprintable() or state.reading.pci_bus_id


def _elf(data: bytes) -> None:
    """The file itself; a table that it claims to have may lie anywhere."""
    file = os.open(folder() / "library", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(file, data)
        found = function_offsets(file, _FUNCTIONS)
    finally:
        os.close(file)
    assert found.keys() <= set(_FUNCTIONS)


def _mapped(data: bytes) -> None:
    """The job chooses the path; the kernel escapes nothing in it but newlines."""
    path = text(data.replace(b"\n", b"\\012").replace(b"\0", b""))
    lines = [f"7f00-7fff r-xp 00001000 08:01 12 /{path}\n", "8000-9000 rw-p 00000000 00:00 0 \n"]
    for candidate in mapped_libraries.candidates(
        lines, mapped_libraries.LIBRARIES + mapped_libraries.HOSTS
    ):
        assert candidate.inode == 12
        assert candidate.path.startswith("/")


TARGETS = (
    Target("dcgm_exporter", _exporter, 65536),
    Target("gpu_readings", _lines, 65536, is_json=True),
    Target("elf_functions", _elf, 65536, (ElfError, OSError)),
    Target("nccl_maps", _mapped, 4096),
)
