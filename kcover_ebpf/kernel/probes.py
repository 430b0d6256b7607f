"""The table of program families, what a refusal of each probe costs, and how a family is loaded.

A family is one object file. A probe that the kernel refuses costs only that probe: the family is loaded again
without it. Only the base family is required.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import LoadError
from kcover_ebpf.kernel import attach_points, features
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.objects import BpfLink, BpfObject
from kcover_ebpf.settings import Settings

_OBJECTS = Path(__file__).resolve().parent.parent / "objects"
"""Found without `importlib.resources`, which imports tempfile, shutil and zipfile at every start."""
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}
_NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Probe:
    """One BPF program of a family, and what its absence costs."""

    name: str
    blind_to: str
    """What cannot be observed without it; empty if another program does the same at a higher cost."""


@dataclass(frozen=True, slots=True)
class Family:
    """The programs of one object file, which is loaded as a unit."""

    name: str
    probes: tuple[Probe, ...]
    required: bool = False


class Refusal(StrEnum):
    """Kinds of reasons why a probe is not attached; a closed list, because it labels a metric."""

    NO_HOOK = "no_hook"
    """This kernel has no such attach point: it was built without it, or is too old."""
    NO_DRIVER = "no_driver"
    """The kernel module with the attach point is not loaded now."""
    NO_LIBRARY = "no_library"
    """A required library is not installed."""
    REFUSED = "refused"
    """The kernel refused: a privilege is missing, or the verifier rejected the program."""


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """Whether one probe is attached, and why not."""

    family: str
    probe: str
    attached: bool
    reason: str
    """The kernel's reason if it is not attached; empty if it is."""
    blind_to: str
    """What cannot be observed without the probe."""
    refusal: Refusal | None = None
    """The kind of the reason; None if it is attached."""


_No = tuple[str, Refusal]
"""Why a probe is not attached: text and kind."""
_YES = ("", None)

FAMILIES = (
    Family(
        "threads",
        (Probe("sample_threads", "what threads wait for, progress, stopped and frozen processes"),),
        required=True,
    ),
    Family(
        "walk",
        (Probe("walk_threads", ""),),
    ),
    Family(
        "sockets",
        (Probe("sample_sockets", "TCP connections, pipes and Unix sockets between processes"),),
    ),
    Family(
        "lifecycle",
        (
            Probe("on_exit", "exit codes and fatal signals of processes"),
            Probe("on_fork", "child processes immediately (they are found by polling)"),
            Probe("on_exec", "when a process executes another program"),
            Probe("on_oom", "victims of the out-of-memory killer"),
            Probe("on_signal", "which process sent a signal"),
            Probe(
                "on_delivery",
                "a process that dies before its core is written or its memory is free",
            ),
        ),
    ),
    Family(
        "tcp",
        (
            Probe(
                "on_retransmit", "retransmissions as they happen (the sampler still counts them)"
            ),
            Probe("on_tcp_state", "connections that open and close between two passes"),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class LoadedFamily:
    """A loaded family: its object, the links of attached programs, and the status of each probe."""

    object: BpfObject | None
    links: dict[str, BpfLink]
    statuses: tuple[ProbeStatus, ...]

    def close(self) -> None:
        """Detach all programs and unload the object."""
        for link in self.links.values():
            link.destroy()
        if self.object is not None:
            self.object.close()


def load_family(family: Family, shared: Mapping[str, BpfMap], settings: Settings) -> LoadedFamily:
    """Load and attach a family, using the maps in `shared` where it declares them too.

    Refused probes are left out, and their status says why. Raises `LoadError` if the family is required and any
    probe of it is refused.
    """
    names = frozenset(probe.name for probe in family.probes)
    refused = _find_absent(family)
    bpf_object: BpfObject | None = None
    try:
        if names - refused.keys():
            bpf_object = _load(family, names - refused.keys(), shared, settings)
    except LoadError as error:
        if family.required:
            raise
        rest = names - refused.keys()
        refused |= _find_refused(family, rest, shared, settings) or dict.fromkeys(rest, _no(error))
        if names - refused.keys():
            bpf_object = _load(family, names - refused.keys(), shared, settings)
    links: dict[str, BpfLink] = {}
    for name in sorted(names - refused.keys()):
        assert bpf_object is not None
        try:
            links[name] = bpf_object.attach(name)
        except LoadError as error:
            refused[name] = _no(error)
    result = LoadedFamily(bpf_object, links, _statuses(family, refused))
    if family.required and refused:
        result.close()
        raise LoadError("; ".join(text for text, _ in refused.values()))
    return result


def _no(error: LoadError) -> _No:
    """Reason and kind of an error; a missing function or PMU does not count as a refusal."""
    cause = error.__cause__
    absent = isinstance(cause, OSError) and cause.errno in _NOT_THERE
    return str(error), Refusal.NO_HOOK if absent else Refusal.REFUSED


def costly(statuses: Iterable[ProbeStatus]) -> list[ProbeStatus]:
    """The probes that are not attached and without which something cannot be observed."""
    return [status for status in statuses if not status.attached and status.blind_to]


def _statuses(family: Family, refused: Mapping[str, _No]) -> tuple[ProbeStatus, ...]:
    return tuple(
        ProbeStatus(
            family.name,
            probe.name,
            attached=probe.name not in refused,
            reason=refused.get(probe.name, _YES)[0],
            blind_to=probe.blind_to,
            refusal=refused.get(probe.name, _YES)[1],
        )
        for probe in family.probes
    )


def _find_absent(family: Family) -> dict[str, _No]:
    """Programs without an attach point on this host, found without trying, which would cost more."""
    opened = open_object(family.name)
    needed, functions = opened.typed_tracepoints(), opened.kernel_functions()
    opened.close()
    absent = attach_points.absent(needed.values())
    has_kprobes = features.has_kprobes()
    found: dict[str, _No] = {}
    for probe in family.probes:
        if needed.get(probe.name) in absent:
            reason = f"this kernel has no tracepoint {needed[probe.name]}"
            found[probe.name] = (reason, Refusal.NO_HOOK)
        elif probe.name in functions and not has_kprobes:
            found[probe.name] = ("this kernel has no kprobes", Refusal.NO_HOOK)
    return found


def _find_refused(
    family: Family, names: frozenset[str], shared: Mapping[str, BpfMap], settings: Settings
) -> dict[str, _No]:
    """Programs that the kernel refuses when each is tried alone, and why."""
    refused = {}
    for name in sorted(names):
        try:
            _load(family, frozenset({name}), shared, settings).close()
        except LoadError as error:
            refused[name] = _no(error)
    return refused


def _load(
    family: Family, names: frozenset[str], shared: Mapping[str, BpfMap], settings: Settings
) -> BpfObject:
    bpf_object = open_object(family.name)
    try:
        for name, bpf_map in bpf_object.maps.items():
            if name in shared:
                bpf_map.reuse(shared[name])
        if not shared:
            bpf_object.maps["events"].set_max_entries(settings.ring_bytes)
            bpf_object.maps["threads"].set_max_entries(settings.max_threads)
        bpf_object.select(names)
        bpf_object.load()
    except BaseException:
        bpf_object.close()
        raise
    return bpf_object


def object_folder() -> Path:
    """Folder of the object files for this machine; raises `LoadError` if there are none."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise LoadError(f"no BPF objects for {machine}; there are for {', '.join(_ARCHITECTURES)}")
    return _OBJECTS / _ARCHITECTURES[machine]


def open_object(name: str) -> BpfObject:
    """The object file of a family for this machine, not yet loaded; raises `LoadError`."""
    return BpfObject(object_folder() / f"{name}.bpf.o")
