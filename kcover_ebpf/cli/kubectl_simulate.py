"""`kubectl kcover simulate`: tries a changed FaultPolicy on past incidents."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.cli.kubectl_common import all_namespaces_option, common, show, show_table
from kcover_ebpf.cli.kubectl_incidents import JobFacts, incidents_since
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.errors import CannotObserve, ObjectError, UsageError
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.output.formatting import span

if TYPE_CHECKING:
    from kcover_ebpf.api.fault_policy import NamedPolicy
    from kcover_ebpf.recovery.simulation import SimulatedIncident

_COLUMNS = ("INCIDENT", "FAULT", "WHAT HAPPENED", "WITH THIS POLICY", "DIFFERENCE")
_MOST_BYTES = 64 << 10
_WIDEST = 100


@click.command()
@click.option(
    "--policy",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML or JSON file with a FaultPolicy; its `action` is Ignore, Observe, Snapshot or Shutdown.",
)
@all_namespaces_option
@duration_option("--since", "30d", "How far back.")
@click.option(
    "--tape",
    "tapes",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also judge this tape, or the tapes of this folder, with the thresholds of the policy.",
)
@common
def simulate(  # noqa: PLR0913 - one for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    file: Path,
    all_namespaces: bool,
    since: float,
    tapes: tuple[Path, ...],
) -> int:
    """Try a changed FaultPolicy on past incidents: what would have been ended, and when. Nothing is changed.

    Covers incidents judged under a policy of the same name, or whose pods match its selector. Thresholds that
    decide whether a fault is reported at all have an effect on tapes only: an incident has one verdict on record.
    """
    try:
        from kcover_ebpf.api.fault_policy import Bounds
        from kcover_ebpf.cli.simulate import object_of, show_tapes, tapes_of
        from kcover_ebpf.recovery.restart.guards import ClusterLimits
        from kcover_ebpf.recovery.simulation import PastIncident, simulated
        from kcover_ebpf.run.tape_simulation import simulated_tape
    except ImportError as error:
        # the plug-in's own archive leaves out what only this verb needs
        raise CannotObserve(f"simulate needs the whole package ({error}): install it") from error

    named = _read(file)
    policy = Bounds().of(named.policy)
    incidents = incidents_since(client, None if all_namespaces else namespace, time.time() - since)
    chosen = [incident for incident in incidents if _is_meant(named, incident)]
    armed = JobFacts(client, chosen).armed
    past = [PastIncident(incident, armed.get(incident.job.uid)) for incident in chosen]
    found = simulated(past, policy, ClusterLimits())
    played = [simulated_tape(path, policy.settings()) for path in tapes_of(tapes)]
    if as_json:
        items = [asdict(one) | {"difference": one.difference.value} for one in found]
        left_out = len(incidents) - len(chosen)
        tape = [object_of(one) for one in played]
        print(json.dumps({"items": items, "tapes": tape, "left_out": left_out}, indent=2))
        return 0
    _show(found, since, len(incidents) - len(chosen))
    if played:
        print()
        show_tapes(played)
    return 0


def _read(file: Path) -> NamedPolicy:
    """The FaultPolicy in a file; raises `UsageError` for anything else."""
    import yaml

    from kcover_ebpf.api.fault_policy import policy_of

    try:
        with file.open("rb") as stream:
            raw = yaml.safe_load(stream.read(_MOST_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(raw, dict) or raw.get("kind") != "FaultPolicy":
        raise UsageError(f"{file} contains no FaultPolicy; see docs/policy.md")
    try:
        return policy_of(raw)
    except ObjectError as error:
        raise UsageError(f"{file}: {error}") from error


def _is_meant(named: NamedPolicy, incident: Incident) -> bool:
    """True if the incident was judged under the policy, or the policy's selector matches the labels of its gang."""
    if named.namespace and named.namespace != incident.namespace:
        return False
    return incident.policy == named.name or named.policy.selector.holds(incident.selector)


def _show(found: Sequence[SimulatedIncident], since_s: float, left_out: int) -> None:
    changed = sum(one.difference.value != "same" for one in found)
    beside = f"; {left_out} of other policies left out" if left_out else ""
    show(f"{len(found)} incidents in {span(since_s)}, {changed} of them changed{beside}")
    if not found:
        return
    print()
    show_table([_COLUMNS, *map(_cells, found)])
    print()
    for one in found:
        if one.difference.value != "same":
            show(f"{one.incident}: {one.would}"[: _WIDEST * 4])
    for text in sorted({text for one in found for text in one.assumed}):
        count = sum(text in one.assumed for one in found)
        show(f"assumed for {count}: {text}")


def _cells(simulated_incident: SimulatedIncident) -> tuple[str, ...]:
    begun_s = simulated_incident.since_s

    def end(moment_s: float | None, otherwise: str) -> str:
        return (
            f"ended after {span(max(moment_s - begun_s, 0.0))}"
            if moment_s is not None
            else otherwise
        )

    did = simulated_incident.did.partition(":")[0]
    return (
        f"{simulated_incident.namespace}/{simulated_incident.incident}",
        f"{simulated_incident.verdict} {simulated_incident.cause}",
        end(simulated_incident.ended_s, f"not ended ({did})"),
        end(simulated_incident.would_end_s, "not ended"),
        simulated_incident.difference.value,
    )
