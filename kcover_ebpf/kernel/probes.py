"""The families of programs as a table, with what a refusal of each probe costs, and how one loads.

A family is one object file. A probe that the kernel refuses costs that probe alone: the family is
loaded again without it. Only the base family is indispensable.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.abc import Traversable
from importlib.resources import as_file, files

from kcover_ebpf.errors import LoadError
from kcover_ebpf.kernel import tracepoints
from kcover_ebpf.kernel.maps import BpfMap
from kcover_ebpf.kernel.objects import BpfObject, Link
from kcover_ebpf.settings import Settings

_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Probe:
    """One program."""

    name: str
    blind_to: str
    """What nobody sees without it; empty if another program does the same at a higher price."""


@dataclass(frozen=True, slots=True)
class Family:
    """The programs of one object file."""

    name: str
    probes: tuple[Probe, ...]
    required: bool = False


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """What became of one probe."""

    family: str
    probe: str
    attached: bool
    reason: str
    """Why it is not attached, in the kernel's words; empty if it is."""
    blind_to: str
    """What cannot be observed without it."""


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
            Probe("on_fork", "child processes at once (they are found by polling)"),
            Probe("on_exec", "a process that becomes another program"),
            Probe("on_oom", "victims of the out-of-memory killer"),
            Probe("on_signal", "who sent a signal"),
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
    """A family in the kernel: its object, the links of what is attached, each probe's fate."""

    object: BpfObject | None
    links: dict[str, Link]
    statuses: tuple[ProbeStatus, ...]

    def close(self) -> None:
        """Detach and unload."""
        for link in self.links.values():
            link.destroy()
        if self.object is not None:
            self.object.close()


def load_family(family: Family, shared: Mapping[str, BpfMap], settings: Settings) -> LoadedFamily:
    """Load and attach a family, on the maps in `shared` where it declares them too.

    Probes that are refused are left out, and their status says why. Raises `LoadError` if the
    family is required and any probe of it is refused.
    """
    names = frozenset(probe.name for probe in family.probes)
    refused = _find_absent(family)
    loaded: BpfObject | None = None
    try:
        if names - refused.keys():
            loaded = _load(family, names - refused.keys(), shared, settings)
    except LoadError as error:
        if family.required:
            raise
        rest = names - refused.keys()
        refused |= _find_refused(family, rest, shared, settings) or dict.fromkeys(rest, str(error))
        if names - refused.keys():
            loaded = _load(family, names - refused.keys(), shared, settings)
    links: dict[str, Link] = {}
    for name in sorted(names - refused.keys()):
        assert loaded is not None
        try:
            links[name] = loaded.attach(name)
        except LoadError as error:
            refused[name] = str(error)
    result = LoadedFamily(loaded, links, _statuses(family, refused))
    if family.required and refused:
        result.close()
        raise LoadError("; ".join(refused.values()))
    return result


def _statuses(family: Family, refused: Mapping[str, str]) -> tuple[ProbeStatus, ...]:
    return tuple(
        ProbeStatus(
            family.name,
            probe.name,
            attached=probe.name not in refused,
            reason=refused.get(probe.name, ""),
            blind_to=probe.blind_to,
        )
        for probe in family.probes
    )


def _find_absent(family: Family) -> dict[str, str]:
    """Programs whose tracepoint is not there: found by name, which is cheaper than by trying."""
    opened = _open(family.name)
    needed = opened.typed_tracepoints()
    opened.close()
    absent = tracepoints.absent(needed.values())
    return {
        probe.name: f"this kernel has no tracepoint {needed[probe.name]}"
        for probe in family.probes
        if needed.get(probe.name) in absent
    }


def _find_refused(
    family: Family, names: frozenset[str], shared: Mapping[str, BpfMap], settings: Settings
) -> dict[str, str]:
    """Which of these programs the kernel refuses, each tried alone, and why."""
    refused = {}
    for name in sorted(names):
        try:
            _load(family, frozenset({name}), shared, settings).close()
        except LoadError as error:
            refused[name] = str(error)
    return refused


def _load(
    family: Family, names: frozenset[str], shared: Mapping[str, BpfMap], settings: Settings
) -> BpfObject:
    bpf_object = _open(family.name)
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


def object_folder() -> Traversable:
    """Where the object files for this machine are; raises `LoadError` where there are none."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise LoadError(f"no BPF objects for {machine}; there are for {', '.join(_ARCHITECTURES)}")
    return files("kcover_ebpf") / "objects" / _ARCHITECTURES[machine]


def _open(name: str) -> BpfObject:
    with as_file(object_folder() / f"{name}.bpf.o") as path:
        return BpfObject(path)
