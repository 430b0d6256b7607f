"""Parsers of files that a person names: policies, rules, catalogues, tapes, traces; and of other programs' output."""

from __future__ import annotations

import socket
from collections.abc import Callable
from io import BufferedReader, BytesIO
from unittest.mock import patch

from kcover_ebpf.collectives.inspector.findings import slow_in
from kcover_ebpf.collectives.inspector.records import runs
from kcover_ebpf.devices.catalog import files as catalog
from kcover_ebpf.errors import PolicyError, UsageError
from kcover_ebpf.inspection import commands, path_mtu, plugins
from kcover_ebpf.inspection.checks import nvidia_smi
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, joined
from kcover_ebpf.inspection.runner import _ANSWER_BYTES, _BLOCK_BYTES, _parsed
from kcover_ebpf.logs import rules
from kcover_ebpf.run.replay import Replay
from kcover_ebpf.run.sinks import Announcer
from kcover_ebpf.settings import Policy
from kcover_ebpf.tapes.reader import TapeReader
from kcover_ebpf.trace import records, render
from plugins import dcgmi, nccl_tests
from tests.fuzz.target import Parser, Target, consumed, folder, of_file, text

_FILE = 65536
_OUTPUT = commands._OUTPUT_BYTES


def _tape(data: bytes) -> None:
    consumed(iter(TapeReader(BufferedReader(BytesIO(data)), "x")))


def _replay(data: bytes) -> None:
    tape = TapeReader(BufferedReader(BytesIO(data)), "x")
    Replay(tape).play(Announcer((), wants_waits=False))


def _trace(data: bytes) -> None:
    view = render.TextView(every_thread=True)
    for line in text(data).split("\n"):
        for shown in view.show(records.parse(line)):
            assert shown.isprintable() or not shown


def _tool(check: Check) -> Parser:
    """A check that reads what a tool printed; the first byte is the exit code."""

    def parsed(data: bytes) -> object:
        ran = commands.Ran(data[0] if data else 0, text(data[1:]))
        with patch.object(commands, "run", lambda _, **__: ran):
            return joined(check.name, check.find(InspectionOptions(root=folder())))

    return parsed


def _plugin(data: bytes) -> None:
    program = folder() / "plug-in"
    program.touch(0o755)
    ran = commands.Ran(data[0] if data else 0, text(data[1:]))
    with patch.object(commands, "run_plugin", lambda _: ran):
        (found,) = plugins._run(program, plugins.PluginHeader(), InspectionOptions())
    assert len(found.evidence) <= 300


def _header(data: bytes) -> None:
    program = folder() / "plug-in"
    program.write_bytes(data)
    header = plugins.header_of(program)
    assert 0 < header.deadline_s <= 600


def _wrapper(examine: Callable[[], tuple[int, str]]) -> Parser:
    """A shipped plug-in that reads what a tool printed; the first byte is the exit code."""

    def parsed(data: bytes) -> None:
        ran = commands.Ran(data[0] if data else 0, text(data[1:]))
        with patch.object(commands, "run_tool", lambda *_: ran):
            code, _ = examine()
        assert code in (0, 1, 2)

    return parsed


def _inspector(data: bytes) -> None:
    found = slow_in(run for run in runs(data.splitlines()) if run is not None)
    assert all(slow.lasts_s >= 0.0 for slow in found)


def _checked(data: bytes) -> object:
    return _parsed(data, nvidia_smi.CHECK)


TARGETS = (
    Target("policy_file", of_file(Policy.from_file, ".toml"), _FILE, (PolicyError,)),
    Target("log_rules", of_file(rules.load, ".toml"), _FILE, (PolicyError,)),
    Target("npd_rules", of_file(rules.load, ".json"), _FILE, (PolicyError,), is_json=True),
    Target("xid_catalog", of_file(catalog.load, ".toml"), _FILE, (PolicyError,)),
    Target("tape", _tape, _FILE, (UsageError,)),
    Target("replay", _replay, _FILE, (UsageError,)),
    Target("trace", _trace, _FILE, (UsageError,)),
    Target("nccl_inspector", _inspector, _FILE, is_json=True),
    Target("dcgmi", _wrapper(dcgmi.examine), _OUTPUT),
    Target("echo", lambda data: path_mtu.is_reply(socket.AF_INET, data, 7, 1), 65_535),
    Target("nccl_tests", _wrapper(lambda: nccl_tests.examine("400")), _OUTPUT),
    Target("nvidia_smi", _tool(nvidia_smi.CHECK), _OUTPUT),
    Target("plugin", _plugin, _OUTPUT),
    Target("plugin_header", _header, _FILE, (UsageError,)),
    Target("check_answer", _checked, _ANSWER_BYTES + _BLOCK_BYTES, is_json=True),
)
