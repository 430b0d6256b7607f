"""`kcover-ebpf doctor`: what works on this host, what does not and why, and the consequences."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kcover_ebpf import __version__
from kcover_ebpf.cli.options import output_option
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.host import capabilities, cgroups
from kcover_ebpf.kernel import features
from kcover_ebpf.kernel.probes import ProbeStatus, Refusal, costly
from kcover_ebpf.output import formatting
from kcover_ebpf.tunables.host import DOCTOR_NVML_S, DOCTOR_SELF_TEST_S

if TYPE_CHECKING:
    from kcover_ebpf.devices.xid.event_sources import Active

_EXAMPLES = """
\b
Examples:
  kcover-ebpf doctor
  kcover-ebpf doctor -o json

\b
Exit codes:
  0 the base layer works; 3 it does not
"""


_STATES = {
    None: "attached",
    Refusal.NO_HOOK: "not in this kernel",
    Refusal.NO_DRIVER: "no driver",
    Refusal.NO_LIBRARY: "not installed",
    Refusal.REFUSED: "refused",
}
_TITLES = {"rights": "privileges"}
"""Feature names in JSON -> names in text output."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One capability that the kernel or the host may offer."""

    name: str
    found: bool
    detail: str
    """What was found, or what cannot be observed without it."""


@click.command(epilog=_EXAMPLES)
@output_option()
def doctor(output: str) -> int:
    """Load every probe, report which ones work, and unload them all again. Changes nothing."""
    found = host_features()
    statuses: tuple[ProbeStatus, ...] = ()
    rungs: Sequence[Active] = ()
    failure: CannotObserve | None = None
    try:
        statuses, rungs = _try_probes()
    except CannotObserve as error:
        failure = error
    if output == "json":
        click.echo(_as_json(found, statuses, rungs, failure))
    else:
        click.echo("\n".join(_as_text(found, statuses, rungs)))
    if failure is not None:
        raise failure
    return 0


def _try_probes() -> tuple[tuple[ProbeStatus, ...], Sequence[Active]]:
    features.require_privileges()
    from kcover_ebpf.devices.catalog.files import load
    from kcover_ebpf.devices.nvml import Nvml
    from kcover_ebpf.devices.watch import DeviceWatch
    from kcover_ebpf.devices.xid import event_sources
    from kcover_ebpf.host.host_programs import host_root
    from kcover_ebpf.kernel.sampler import KernelSampler
    from kcover_ebpf.settings import Settings

    settings = Settings(nccl_probes=True)
    with (
        KernelSampler.open(settings) as kernel,
        DeviceWatch(kernel.maps, settings, load) as devices,
    ):
        devices.hear_lines()
        for _ in range(2):  # by the console's tracepoint, then by its substitute
            end_s = time.monotonic() + DOCTOR_SELF_TEST_S
            while not devices.console_works and (left_s := end_s - time.monotonic()) > 0:
                for fact in kernel.wait(left_s):
                    devices.observe(fact, ())
            devices.hear_lines()
        statuses, found = devices.statuses, event_sources.active(devices.sources)
        if not any(status.probe == "nvml" for status in statuses):
            nvml = Nvml(host_root())
            statuses = (*statuses, nvml.status(DOCTOR_NVML_S))
            nvml.close()
        return (*kernel.statuses, *statuses), found


def host_features() -> list[Feature]:
    """Features of the kernel and our privileges, except the probes themselves."""
    lacking = capabilities.missing()
    return [
        Feature(
            "rights",
            not lacking,
            f"missing {', '.join(lacking)}: run as root" if lacking else "can load BPF programs",
        ),
        _numbers_feature(),
        Feature(
            "type information",
            features.BTF.exists(),
            str(features.BTF) if features.BTF.exists() else "needs CONFIG_DEBUG_INFO_BTF",
        ),
        *([] if lacking else _kernel_features()),
        _memory_feature(),
        _network_feature(),
        *_cgroup_features(),
    ]


def _numbers_feature() -> Feature:
    found = features.has_host_numbers()
    return Feature(
        "process numbers", found, "the host's pid namespace" if found else features.FOREIGN_NUMBERS
    )


def _kernel_features() -> list[Feature]:
    return [Feature(one.name, one.found, one.detail) for one in features.kernel_features()]


def _memory_feature() -> Feature:
    can = capabilities.Capability.SYS_PTRACE in capabilities.effective()
    detail = "user stacks and wait time-outs are readable"
    return Feature("memory of other processes", can, detail if can else f"not: {detail}")


def _network_feature() -> Feature:
    can = capabilities.Capability.SYS_ADMIN in capabilities.effective()
    detail = "NCCL counters (RAS) are readable in other network namespaces"
    lost = f"needs CAP_SYS_ADMIN; not: {detail}"
    return Feature("networks of other jobs", can, detail if can else lost)


def _cgroup_features() -> list[Feature]:
    path = cgroups.make_for_job("kcover-doctor", os.getpid())
    if path is None:
        lost = "run identifies its job by the process tree and kills processes one by one"
        return [Feature("own control group", False, lost)]
    try:
        can_kill = cgroups.can_kill(path)
    finally:
        cgroups.remove(path)
    return [
        Feature("own control group", True, f"below {path.parent}"),
        Feature(
            "kill a group as one",
            can_kill,
            "cgroup.kill" if can_kill else "needs Linux 5.14; processes are stopped, then killed",
        ),
    ]


def _as_text(
    found: list[Feature], statuses: tuple[ProbeStatus, ...], rungs: Sequence[Active]
) -> list[str]:
    lines = [f"kcover-ebpf {__version__}, Linux {platform.release()}, {platform.machine()}", ""]
    feature_rows = [
        (_TITLES.get(feature.name, feature.name), "yes" if feature.found else "no", feature.detail)
        for feature in found
    ]
    lines += formatting.aligned([("FEATURE", "FOUND", "DETAIL"), *feature_rows])
    if statuses:
        rows = [
            (
                status.family,
                status.probe,
                _STATES[status.refusal],
                status.blind_to,
                status.reason,
            )
            for status in statuses
        ]
        titles = ("FAMILY", "PROBE", "STATE", "SEES", "WHY NOT")
        lines += ["", *formatting.aligned([titles, *rows])]
    if rungs:
        sources = [(active.family, active.rung) for active in rungs]
        lines += ["", *formatting.aligned([("EVENTS", "DETECTED BY"), *sources])]
    lost = [status.blind_to for status in costly(statuses)]
    if lost:
        lines += ["", "not observable on this host: " + "; ".join(lost)]
    elif statuses:
        lines += ["", "everything can be observed on this host"]
    return lines


def _as_json(
    found: list[Feature],
    statuses: tuple[ProbeStatus, ...],
    rungs: Sequence[Active],
    failure: CannotObserve | None,
) -> str:
    fields = {
        "version": __version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "ok": failure is None,
        "trouble": None if failure is None else str(failure),
        "features": [asdict(feature) for feature in found],
        "probes": [asdict(status) for status in statuses],
        "rungs": [asdict(active) for active in rungs],
        "unobserved": [status.blind_to for status in costly(statuses)],
    }
    return formatting.event_line("doctor", time.time(), fields)
