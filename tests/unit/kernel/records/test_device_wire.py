"""Both sides of bpf/devices.h agree, as test_wire.py demands it of bpf/events.h; and decoding."""

import ctypes
import inspect
import json
import re
import subprocess
from enum import IntEnum

import pytest

from kcover_ebpf.errors import DecodeError
from kcover_ebpf.facts import devices as facts
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel.records import device_wire as wire
from kcover_ebpf.kernel.records.decode import decode
from kcover_ebpf.kernel.records.wire import EventHeader
from tests.unit.support.bpf_layouts import (
    ARCHITECTURES,
    EVENTS_H,
    OBJECTS,
    Type,
    camel,
    described,
    described_mirror,
    enums,
    structs,
)

DEVICES_H = EVENTS_H.with_name("devices.h")
SHARED = {"event_header"}


def types_of(architecture: str) -> list[Type]:
    path = OBJECTS / architecture / "device_layout.bpf.o"
    command = ["bpftool", "--json", "btf", "dump", "file", str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30)
    types: list[Type] = json.loads(done.stdout)["types"]
    return types


TYPES = types_of("x86_64")
STRUCTS = {name: one for name, one in structs(TYPES).items() if name not in SHARED}


def test_device_wire__the_layout_object_has_every_type_of_the_header() -> None:
    text = DEVICES_H.read_text()
    assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) == set(STRUCTS)
    assert set(re.findall(r"^enum (\w+) \{", text, re.MULTILINE)) == set(enums(TYPES))


def test_device_wire__nothing_is_mirrored_that_the_header_lacks() -> None:
    mirrors = {
        name
        for name, one in inspect.getmembers(wire, inspect.isclass)
        if one.__module__ == wire.__name__ and issubclass(one, ctypes.Structure | IntEnum)
    }
    assert mirrors == {camel(name) for name in (*STRUCTS, *enums(TYPES))}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_device_wire__struct(architecture: str, name: str) -> None:
    types = types_of(architecture)
    struct = structs(types)[name]
    mirror = getattr(wire, camel(name))
    fields = [
        (one["name"], one["bits_offset"] // 8, described(types, one["type_id"]))
        for one in struct["members"]
    ]
    mirrored = [
        (field, getattr(mirror, field).offset, described_mirror(kind))
        for field, kind in mirror._fields_
    ]
    assert mirrored == fields
    assert ctypes.sizeof(mirror) == struct["size"]
    assert sum(ctypes.sizeof(kind) for _, kind in mirror._fields_) == struct["size"], "a hole"


@pytest.mark.parametrize("name", sorted(enums(TYPES)))
def test_device_wire__enum(name: str) -> None:
    values = enums(TYPES)[name]["values"]
    mirror = getattr(wire, camel(name))
    named = {one["name"].split("_", 1)[1]: one["val"] for one in values}
    assert {member.name: member.value for member in mirror} == named


def record(mirror, device_event_type: wire.DeviceEventType, **fields) -> bytes:
    header = EventHeader(type=device_event_type, size=ctypes.sizeof(mirror), pid=7, boottime_ns=9)
    event = mirror(header=header)
    for name, value in fields.items():
        if isinstance(value, bytes):
            target = getattr(event, name)
            target[: len(value)] = value
        else:
            setattr(event, name, value)
    return bytes(event)


KIND = wire.DeviceEventType


def health(reporter: bytes, text: bytes) -> bytes:
    nic = b"0000:9a:00.0"
    return record(wire.NicEvent, KIND.NIC, source=2, device=nic, reporter=reporter, text=text)


GPU = b"0000:5d:00.0"
MCE = 1 << 61


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (
            record(wire.XidEvent, KIND.XID, number=79, rung=1, device=GPU, text=b"lost"),
            facts.XidSighting(9, "0000:5d:00.0", 79, "lost", facts.Rung.KPROBE),
        ),
        (record(wire.LogEvent, KIND.LOG, text=b"NVRM: x"), facts.DriverLine(9, "NVRM: x")),
        (
            record(wire.AerEvent, KIND.AER, device=GPU, status=0x40, severity=2, total=5),
            facts.AerTotal(9, "0000:5d:00.0", facts.AerSeverity.CORRECTED, 0x40, 5),
        ),
        (
            record(wire.MemoryEvent, KIND.MEMORY, source=1, severity=1, count=3, label=b"DIMM 1"),
            facts.MemoryFault(9, facts.MemoryKind.EDAC, False, 0, 3, "DIMM 1"),
        ),
        (
            # only informational, as arm64 firmware reports them
            record(wire.MemoryEvent, KIND.MEMORY, source=1, severity=4, count=1, label=b"DIMM 1"),
            facts.MemoryFault(9, facts.MemoryKind.EDAC, True, 0, 1, "DIMM 1"),
        ),
        (
            record(wire.MemoryEvent, KIND.MEMORY, source=2, address=42, status=3, count=1),
            facts.MemoryFault(9, facts.MemoryKind.PAGE, False, 42, 1, "page recovered"),
        ),
        (
            record(wire.MemoryEvent, KIND.MEMORY, source=3, status=MCE, severity=4, count=1, cpu=2),
            facts.MemoryFault(
                9,
                facts.MemoryKind.MACHINE_CHECK,
                False,
                0,
                1,
                "CPU 2 bank 4 status 0x2000000000000000",
            ),
        ),
        *(
            (
                record(
                    wire.MemoryEvent,
                    KIND.MEMORY,
                    source=4,
                    address=0x100,
                    status=runs,
                    severity=known,
                    count=1,
                ),
                facts.MemoryFault(9, facts.MemoryKind.ARM_PROCESSOR, corrected, 0x100, 1, text),
            )
            for runs, known, corrected, text in (
                (1, 5, True, "processor 0x100 runs on"),
                (0, 5, False, "processor 0x100 may have stopped"),
                (1, 1, False, "processor 0x100 may have stopped"),  # its state is not valid
            )
        ),
        *(
            (
                record(
                    wire.MemoryEvent, KIND.MEMORY, source=5, severity=severity, count=1, label=label
                ),
                facts.MemoryFault(9, facts.MemoryKind.VENDOR_SECTION, corrected, 0, 1, text),
            )
            for severity, label, corrected, text in (
                (1, b"CCPLEX", True, "CCPLEX"),
                (2, b"", False, "firmware does not say which part"),
            )
        ),
        (
            record(wire.OpenEvent, KIND.OPEN, file=5, minor=1, opened=1),
            facts.DeviceHeld(9, Pid(7), 1, 5, True),
        ),
        (
            record(wire.UvmEvent, KIND.UVM, uuid=bytes(range(16)), registered=1),
            facts.CudaContext(9, Pid(7), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", True),
        ),
        (
            record(wire.ModuleEvent, KIND.MODULE, loaded=1, name=b"nvidia"),
            facts.DriverChange(9, "nvidia"),
        ),
        (
            record(wire.NicEvent, KIND.NIC, source=1, event=10, port=1, device=b"mlx5_0"),
            facts.PortChange(9, "mlx5_0/1", "", False, "port down"),
        ),
        (
            health(b"fw_fatal", b"critical temperature"),
            facts.DeviceNotice(
                9, "0000:9a:00.0", facts.Notice.NIC_FAILED, "fw_fatal: critical temperature"
            ),
        ),
        (
            health(b"fw", b"FW fatal error reported"),
            facts.DeviceNotice(
                9, "0000:9a:00.0", facts.Notice.NIC_FAILED, "fw: FW fatal error reported"
            ),
        ),
        (
            health(b"fw_reset", b"FW non-fatal reset event received"),
            facts.DeviceNotice(
                9,
                "0000:9a:00.0",
                facts.Notice.NIC_HEALTH,
                "fw_reset: FW non-fatal reset event received",
            ),
        ),
        (
            health(b"tx", b"TX timeout on queue: 3"),
            facts.DeviceNotice(
                9, "0000:9a:00.0", facts.Notice.NIC_HEALTH, "tx: TX timeout on queue: 3"
            ),
        ),
        (
            record(
                wire.BlockEvent,
                KIND.BLOCK,
                sector=8,
                bytes=4096,
                status=7,
                operation=0,
                major=8,
                minor=16,
                disk=b"sdb",
            ),
            facts.BlockError(9, "sdb", "8:16", "read", 8, 4096, "medium"),
        ),
        (
            record(wire.BlockEvent, KIND.BLOCK, status=200, operation=35, disk=b"sdb"),
            facts.BlockError(9, "sdb", "0:0", "operation 35", 0, 0, "status 200"),
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, bytes) else "",
)
def test_event_header__decode(raw: bytes, fact: facts.DeviceFact) -> None:
    assert decode(raw) == fact


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (record(wire.XidEvent, KIND.XID, rung=9), "bad_value"),
        (record(wire.AerEvent, KIND.AER, severity=9), "bad_value"),
        (record(wire.MemoryEvent, KIND.MEMORY, source=9), "bad_value"),
        (record(wire.NicEvent, KIND.NIC, source=1, event=77), "bad_value"),
        (record(wire.LogEvent, KIND.LOG)[:-1], "wrong_size"),
    ],
)
def test_event_header__bad_records_are_refused(raw: bytes, kind: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    assert caught.value.kind == kind
