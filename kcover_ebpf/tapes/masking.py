"""Masks names in facts: what identifies people, code or machines is replaced, what a judgement needs stays.

Every text in a fact has a rule here or in `KEPT`; a test fails for a new one without. A name has the same pseudonym
throughout a tape, and another one in each tape: it is a keyed hash whose key is not kept.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from hashlib import blake2b
from posixpath import basename, dirname
from typing import Any, TypeVar

from kcover_ebpf.diagnosis import wait_table
from kcover_ebpf.diagnosis.evidence.recorders import DEFAULT_GROUP
from kcover_ebpf.diagnosis.history import code_map, stacks
from kcover_ebpf.diagnosis.judge import nccl
from kcover_ebpf.diagnosis.membership import rank_numbers, roles
from kcover_ebpf.facts import devices, host, inspector, kernel, logs, python_stacks, recorders

_T = TypeVar("_T")
_Rules = Mapping[type, Mapping[str, Callable[[Any], Any]]]
_PYTHON = re.compile(r"python[\d.]*")
_PLAIN_TARGET = re.compile(
    r"(socket|pipe|net):\[\d+\]|anon_inode:\[?[a-z_-]+\]?"
    r"|/dev/(null|zero|full|tty\d*|u?random|fuse|kfd|accel/\w+|dri/\w+|infiniband/\w+|pts/\d+"
    r"|nvidia[\w-]*(/[\w-]+)*)"
)
_VERSION = re.compile(r"(_(cpu|cuda|hip|python))?[-.\d]*(so[-.\d]*)?")
_LIBRARIES = tuple(
    dict.fromkeys((*code_map.PREFIXES, *stacks.PLUMBING, *wait_table.FRAMEWORKS, *nccl.LIBRARIES))
)
"""Name prefixes of libraries that every system has or that the judgement looks for."""
_NOWHERE = frozenset({"", "0.0.0.0", "::", "::1"})
LEFT_OUT = "(left out of the tape)"

KEPT: Mapping[type, frozenset[str]] = {
    kernel.SocketSample: frozenset({"state"}),
    kernel.DescriptorSample: frozenset({"kind"}),
    host.WaitedFile: frozenset({"kind", "device", "fs_type"}),
    host.StorageState: frozenset({"device"}),
    host.ThreadReading: frozenset({"wait_channel"}),
    host.CollectiveSide: frozenset({"operations"}),
    host.CollectiveLag: frozenset({"kind"}),
    recorders.RecordedCall: frozenset({"operation", "state", "shape"}),
    devices.XidSighting: frozenset({"device"}),
    devices.XidReported: frozenset({"device"}),
    devices.DeviceNotice: frozenset({"device"}),
    devices.AerTotal: frozenset({"device"}),
    devices.AerError: frozenset({"device", "errors"}),
    devices.DriverChange: frozenset({"module"}),
    devices.PortChange: frozenset({"port", "device"}),
    devices.FabricErrors: frozenset({"port", "device", "counters"}),
    devices.BlockError: frozenset({"disk", "device", "operation", "error"}),
    devices.DriverCall: frozenset({"device", "wait_channel"}),
    devices.GpuSeen: frozenset({"devices"}),
    devices.DeviceFault: frozenset({"device", "code"}),
}
"""Text fields with terms of the kernel, a library or the bus: they identify no person and no host."""


class Masks:
    """Name -> pseudonym for one tape, with a random key."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self.rules: _Rules = {
            **self._of_kernel(),
            **self._of_host(),
            **self._of_recorders(),
            **self._of_devices(),
        }

    def _of_kernel(self) -> _Rules:
        comm = self._program
        pair = {"local": self._endpoint, "remote": self._endpoint}
        return {
            kernel.ThreadSample: {"comm": comm},
            kernel.SocketSample: pair,
            kernel.TcpRetransmit: pair,
            kernel.ProcessFork: {"comm": comm},
            kernel.ProcessExec: {"comm": comm},
            kernel.ProcessExit: {"comm": comm},
            kernel.OomKill: {"comm": comm},
            kernel.SignalSent: {"sender_comm": comm},
            kernel.FatalSignal: {"comm": comm},
        }

    def _of_host(self) -> _Rules:
        named = dict.fromkeys(("behind", "missing", "failed", "odd", "lags"), self._each)
        return {
            host.ProcessSeen: {
                "comm": self._program,
                "argv": self._argv,
                "rank_environ": self._environ,
            },
            host.WaitedFile: {"target": self._target},
            host.Module: {"name": self._module},
            host.CodeSeen: {"stack": self._stack, "modules": self._each, "devices": self._nodes},
            host.ThreadReading: {"stack": self._stack, "files": self._each, "devices": self._nodes},
            host.LaggingHost: {"host": self._address},
            host.CollectiveLag: {"places": self._each},
            host.CollectiveRank: {"host": self._address, "comm": self._name, "trouble": _text},
            logs.BrokenLogRule: {"text": _text},
            logs.LogSeen: {"broken": self._each},
            host.CollectivesSeen: {**named, "trouble": _text, "unseen": _text},
        }

    def _of_recorders(self) -> _Rules:
        return {
            recorders.RecordedCall: {"group": self._name, "place": self._name},
            recorders.RecordedGroup: {
                "name": self._name,
                "purpose": self._purpose,
                "pending": self._each,
                "messages": self._each,
                "last": self._optional,
            },
            recorders.RankRecord: {"groups": self._each, "last": self._optional},
            recorders.UnreadRecorder: {"reason": _text},
            recorders.RecordersSeen: {"records": self._each, "unread": self._each},
            inspector.GroupMember: {"host": self._address},
            inspector.SlowCollective: {
                "communicator": self._name,
                "collective": self._name,
                "members": self._each,
                "hosts": lambda found: tuple(map(self._address, found)),
            },
            inspector.InspectorSeen: {"slow": self._each},
            python_stacks.PythonFrame: {"function": self._name, "file": self._name},
            python_stacks.PythonStack: {"frames": self._each},
            python_stacks.PythonStacksSeen: {
                "stacks": self._each,
                "unread": lambda said: tuple(map(_text, said)),
            },
        }

    def _purpose(self, purpose: str) -> str:
        return purpose if purpose == DEFAULT_GROUP else self._name(purpose)

    def _optional(self, part: _T | None) -> _T | None:
        return None if part is None else self.of(part)

    def _nodes(self, found: frozenset[str] | None) -> frozenset[str] | None:
        return None if found is None else frozenset(map(self._target, found))

    def _of_devices(self) -> _Rules:
        comm, uuid = self._program, self._name
        return {
            devices.XidSighting: {"text": _text},
            devices.XidReported: {"text": _text, "process": comm},
            devices.DeviceNotice: {"text": _text},
            devices.DriverLine: {"text": _text},
            devices.MemoryFault: {"text": _text},
            devices.CudaContext: {"uuid": uuid},
            devices.PortChange: {
                "text": _text,
                "addresses": lambda found: tuple(map(self._address, found)),
            },
            devices.DriverCall: {"node": self._target, "uuid": uuid},
            devices.DeviceFault: {"text": _text, "uuid": uuid},
        }

    def of(self, fact: _T) -> _T:
        """A copy of the fact in which every name is masked."""
        rules = self.rules.get(type(fact))
        if not rules or not is_dataclass(fact):
            return fact
        changes = {name: rule(getattr(fact, name)) for name, rule in rules.items()}
        return replace(fact, **changes)  # type: ignore[type-var]

    def _each(self, parts: tuple[_T, ...]) -> tuple[_T, ...]:
        return tuple(self.of(part) for part in parts)

    def _hash(self, name: str, size: int) -> str:
        # JSON that a job wrote may contain any half of a surrogate pair
        data = name.encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=size, key=self._key).hexdigest()

    def _name(self, name: str) -> str:
        return f"name-{self._hash(name, 4)}" if name else ""

    def _program(self, name: str) -> str:
        plain = name in roles.PROGRAMS or _PYTHON.fullmatch(name)
        return name if plain else self._name(name)

    def _argv(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The masked program, and of the other words only those that show the purpose of a process."""
        if not words:
            return ()
        program, *others = words
        reported = self._word(program)
        return (self._path(program) if reported == "_" else reported, *map(self._word, others))

    def _path(self, path: str) -> str:
        # processes that multiprocessing spawns are recognised by the full path of their parent's
        # interpreter
        folder, program = dirname(path), self._program(basename(path))
        return f"/{self._name(folder)}/{program}" if folder else program

    @staticmethod
    def _word(word: str) -> str:
        if word in roles.ROLE_WORDS or rank_numbers.is_number(word):
            return word
        if basename(word) in roles.PROGRAMS:
            return basename(word)
        return next((role_part for role_part in roles.ROLE_PARTS if role_part in word), "_")

    def _environ(self, found: dict[str, str]) -> dict[str, str]:
        return {
            name: value if value.isascii() and value.isdigit() else self._name(value)
            for name, value in found.items()
            if name in rank_numbers.RANK_ENVIRON
        }

    def _target(self, target: str) -> str:
        if _PLAIN_TARGET.fullmatch(target) or not target:
            return target
        return f"/{self._name(target)}"

    def _module(self, name: str) -> str:
        if not name or re.fullmatch(r"\[[a-z]+\]", name):
            return name
        prefix = max(
            (library for library in _LIBRARIES if name.startswith(library)), key=len, default=""
        )
        if prefix and _VERSION.fullmatch(name.removeprefix(prefix)):
            return name
        return prefix + self._name(name)

    def _stack(self, words: tuple[str, ...]) -> tuple[str, ...]:
        parts = (word.rpartition("+") for word in stacks.unbuilt(words))
        return tuple(f"{self._module(name)}{plus}{offset}" for name, plus, offset in parts)

    def _address(self, address: str) -> str:
        """A pseudonymous address that no host has (RFC 4193), long enough that two addresses of a job never collide."""
        if address in _NOWHERE or address.startswith("127."):
            return address
        digits = self._hash(address, 8)
        return "fd00::" + ":".join(digits[at : at + 4] for at in range(0, 16, 4))

    def _endpoint(self, endpoint: tuple[str, int]) -> tuple[str, int]:
        return self._address(endpoint[0]), endpoint[1]


def _text(said: str) -> str:
    """Messages of drivers and libraries, which may contain names of processes, files and hosts."""
    return LEFT_OUT if said else ""
