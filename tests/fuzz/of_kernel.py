"""Parsers of what the kernel hands out: records, netlink, its log, /proc.

The kernel made these bytes, but names in them come from jobs: of programs, files, mounts, interfaces.
"""

from __future__ import annotations

import struct
from collections import Counter
from unittest.mock import patch

from kcover_ebpf.api.container_cgroup import containers_of_process
from kcover_ebpf.collectives.ras.netns import _endpoint
from kcover_ebpf.devices import ports
from kcover_ebpf.devices.catalog import files, judge
from kcover_ebpf.devices.xid import kmsg_parser, kmsg_reader
from kcover_ebpf.errors import DecodeError
from kcover_ebpf.facts.devices import XidReported
from kcover_ebpf.host import blocked_call, cgroups, nfs_servers, proc_text, procfs, stack_frames
from kcover_ebpf.host.blocked_call import parse_locks
from kcover_ebpf.ids import Pid
from kcover_ebpf.inspection.mounts import find_mounts
from kcover_ebpf.kernel.attach_points import variants
from kcover_ebpf.kernel.records import decode
from tests.fuzz.target import Target, consumed, folder, text

_LAYOUTS = sorted((kind, layout.size) for kind, (layout, _) in decode._DECODERS.items())
_KINDS = {decode.TRUNCATED, decode.UNKNOWN_TYPE, decode.WRONG_SIZE, decode.BAD_VALUE}
_MOUNT = "mnt_id:\t22\n"


def _stream(data: bytes) -> None:
    rejected: Counter[str] = Counter()
    consumed(decode.decode_stream(data, rejected))
    assert rejected.keys() <= _KINDS


def _record(data: bytes) -> object:
    """One record of a type and of its size, which bytes alone seldom are: the first byte chooses the type."""
    kind, size = _LAYOUTS[data[0] % len(_LAYOUTS)] if data else _LAYOUTS[0]
    body = data[1 : size - 3].ljust(size - 4, b"\0")
    return decode.decode(struct.pack("=HH", kind, size) + body)


def _kmsg(data: bytes) -> None:
    record = kmsg_parser.parse_record(data)
    kmsg_reader.may_concern(data)
    if record is not None and kmsg_parser.read_record(record, 1) is not None:
        assert record.from_kernel


def _console(data: bytes) -> None:
    found = kmsg_parser.read_console(text(data), 1)
    if isinstance(found, XidReported) and (entry := files.shipped().find(found.number)):
        judge(entry, found.text)


def _stat(data: bytes) -> None:
    """A program may call itself anything."""
    name = text(data[:15].replace(b"\0", b""))
    words = " ".join(["S", *map(str, range(2, 52))])
    assert procfs.parse_stat(f"7 ({name}) {words}") == (name, 2, 20 * procfs._TICK_NS)


def _maps(data: bytes) -> None:
    """The job chooses the paths of what it maps; the kernel escapes nothing in them but newlines."""
    path = text(data.replace(b"\n", b"\\012").replace(b"\0", b""))
    lines = f"7f00-7fff r-xp 00001000 08:01 12 /{path}\n8000-9000 rw-p 00000000 00:00 0 \n"
    (folder() / "maps").write_text(lines, encoding="utf-8", newline="")
    with open(folder() / "maps", encoding="utf-8", errors="replace", newline="\n") as file:
        (found,) = proc_text.code_mappings(file)
    assert found[:3] == (0x7F00, 0x7FFF, 0x1000)


def _mountinfo(data: bytes) -> None:
    """The text as a whole: a mount's options are words of its file system."""
    content = text(data)
    cgroups.hierarchies(content)
    mount = nfs_servers.parse_mount(content, "0:55")
    nfs_servers.parse_counters(content, mount or "/mnt", "0:55")
    (folder() / "proc/1/root").mkdir(parents=True, exist_ok=True)
    (folder() / "proc/1/mountinfo").write_bytes(data)
    for mounted in find_mounts(folder()):
        assert mounted.label
    with patch.object(
        blocked_call, "read_text", lambda path: _MOUNT if "fdinfo" in path else content
    ):
        blocked_call._mount_of(Pid(1), 3)


def _vol_data(data: bytes) -> None:
    """Beside a CSI driver's mount, in a directory that the driver writes."""
    place = folder() / "csi/proc/1"
    beside = place / "root/kubernetes.io~csi/v"
    (beside / "mount").mkdir(parents=True, exist_ok=True)
    (place / "mountinfo").write_text(
        "9 1 0:55 / /kubernetes.io~csi/v/mount rw shared:1 - nfs4 server:/data rw\n"
    )
    (beside / "vol_data.json").write_bytes(data)
    assert len(find_mounts(folder() / "csi")) == 1


def _net_tcp(data: bytes) -> None:
    for word in text(data).split():
        _endpoint(word)


TARGETS = (
    Target("record_stream", _stream, 65536),
    Target("record", _record, 1024, (DecodeError,)),
    Target("netlink", lambda data: consumed(ports.parse_links(data)), 65536),
    Target("kmsg", _kmsg, 8192),
    Target("console", _console, 1024),
    Target("proc_stat", _stat, 32),
    Target("proc_maps", _maps, 4096),
    Target("proc_mountinfo", _mountinfo, 65536),
    Target("proc_vol_data", _vol_data, 65536),
    Target("proc_locks", lambda data: parse_locks(text(data), Pid(701)), 65536),
    Target("proc_net_tcp", _net_tcp, 4096),
    Target("proc_stack", lambda data: stack_frames.parse_kernel_stack(text(data)), 16384),
    Target("proc_cgroup", lambda data: containers_of_process(text(data)), 65536),
    Target("kallsyms", lambda data: variants("nvidia_close", text(data).splitlines()), 65536),
)
