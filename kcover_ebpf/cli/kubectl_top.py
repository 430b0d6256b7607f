"""`kubectl kcover top`: all jobs and their ranks, from the reports of agents and from incidents."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import click

from kcover_ebpf.api import fault_report, incident
from kcover_ebpf.api.agent_lease import AgentLease, collection, lease_of
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident
from kcover_ebpf.cli.kubectl_common import agent_namespace_option, all_namespaces_option, common
from kcover_ebpf.cli.options import duration_option
from kcover_ebpf.errors import CannotObserve, Forbidden, NotFound, ObjectError, Unreachable
from kcover_ebpf.gang.gang_snapshot import ReceivedReport, confirmed
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.output.board_text import changes, lines_of, object_of
from kcover_ebpf.output.formatting import printable
from kcover_ebpf.output.job_board import BoardJob, board_of

_GROUP = f"/apis/{API_VERSION}"
_USUAL = "kcover"
"""Namespace of the chart unless another is chosen."""
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""Escape sequences: switch to the alternate screen without a cursor, and back."""


@click.command()
@all_namespaces_option
@click.option("--watch", is_flag=True, help="Keep refreshing until interrupted.")
@duration_option("--every", "2s", "With --watch: time between two readings.")
@agent_namespace_option
@common
def top(  # noqa: PLR0913 - one for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    all_namespaces: bool,
    watch: bool,
    every: float,
    agent_namespace: str | None,
) -> int:
    """Show all jobs: their ranks by node, the culprit, and what is done about it.

    Without a terminal, --watch prints a line for each job whose state changes.
    """
    where = "" if all_namespaces else f"/namespaces/{namespace}"
    is_screen = watch and not as_json and sys.stdout.isatty()
    before: tuple[BoardJob, ...] = ()
    agents, leases = _agents(client, agent_namespace)
    with _screen() if is_screen else contextlib.nullcontext():
        while True:
            try:
                jobs = _board(client, where, leases or _leases(client, agents, time.time()))
            except Unreachable as error:
                if not watch:
                    raise
                _report(error, is_screen)
            else:
                if as_json:
                    _print_json(jobs, indent=None if watch else 2)
                elif is_screen:
                    size = shutil.get_terminal_size()
                    _draw(lines_of(jobs, size.columns, size.lines, colours=True))
                elif watch:
                    _print_changes(before, jobs)
                else:
                    _print(jobs, where)
                before = jobs
            if not watch:
                return 0
            time.sleep(every)
            leases = {}


def _report(unreachable: Unreachable, is_screen: bool) -> None:
    """Show that there is no reading: an API server is restarted now and then, and what it said before is old."""
    text = printable(str(unreachable))
    if is_screen:
        _draw([f"no current reading: {text}"])
    else:
        click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _print_json(jobs: tuple[BoardJob, ...], indent: int | None) -> None:
    items = {"time": time.time(), "items": [object_of(job) for job in jobs]}
    print(json.dumps(items, indent=indent), flush=True)


def _print_changes(before: tuple[BoardJob, ...], jobs: tuple[BoardJob, ...]) -> None:
    now = time.strftime("%H:%M:%S")
    for line in changes(before, jobs):
        print(f"{now} {line}", flush=True)


def _print(jobs: tuple[BoardJob, ...], where: str) -> None:
    width = shutil.get_terminal_size((120, 0)).columns
    print("\n".join(lines_of(jobs, width, colours=sys.stdout.isatty())))
    if not jobs and where:
        namespace = where.rpartition("/")[2]
        print(f"no job is watched in namespace {namespace}; -A shows those of all")


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    sys.stdout.write(_ENTER)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _draw(lines: Sequence[str]) -> None:
    """Write all lines at once, so that the screen does not flicker."""
    size = shutil.get_terminal_size()
    text = "\r\n".join(f"{line}{_CLEAR_LINE}" for line in lines[: size.lines])
    sys.stdout.write(f"{_HOME}{text}{_CLEAR_REST}")
    sys.stdout.flush()


def _board(
    client: ApiClient, where: str, leases: Mapping[str, tuple[AgentLease, float]]
) -> tuple[BoardJob, ...]:
    now_s = time.time()
    try:
        raw_reports = client.list(f"{_GROUP}{where}/faultreports").get("items") or []
        raw_incidents = client.list(f"{_GROUP}{where}/incidents").get("items") or []
    except NotFound:
        raise CannotObserve("this cluster has no reports; is kcover-ebpf installed?") from None
    reports = []
    for raw in raw_reports:
        with contextlib.suppress(ObjectError):
            report, metadata = fault_report.report_of(raw), raw["metadata"]
            written_s = fault_report.written_s(metadata)
            received = ReceivedReport(report, min(written_s or 0.0, now_s))
            lease = leases.get(report.node)
            if lease is not None:
                received = confirmed(received, *lease)
            reports.append((str(metadata.get("namespace", "")), received))
    return board_of(reports, list(_incidents(raw_incidents)), now_s)


def _incidents(items: list[dict[str, object]]) -> Iterator[Incident]:
    from kcover_ebpf.api import rfc3339

    for raw in items:
        with contextlib.suppress(ObjectError, ValueError):
            metadata = raw["metadata"]
            assert isinstance(metadata, dict)
            yield incident.incident_of(raw, rfc3339.from_text(str(metadata["creationTimestamp"])))


def _agents(
    client: ApiClient, namespace: str | None
) -> tuple[str, dict[str, tuple[AgentLease, float]]]:
    """Namespace of the agents and their Leases, which confirm reports; `namespace` None: detect it."""
    from kcover_ebpf.trace.gang.agent_pods import namespace_of_agents

    agents = namespace or _USUAL
    leases = _leases(client, agents, time.time())
    if not leases and namespace is None and (found := namespace_of_agents(client)):
        agents, leases = found, _leases(client, found, time.time())
    if not leases:
        text = (
            f"no Lease of an agent is in namespace {agents}, so that older reports count as unknown"
        )
        click.echo(f"{text}: name its namespace with --agent-namespace", err=True)
    return agents, leases


def _leases(
    client: ApiClient, agent_namespace: str, now_s: float
) -> dict[str, tuple[AgentLease, float]]:
    """Node -> Lease of its agent; empty if they may not be read: old reports are then not believed."""
    found: dict[str, tuple[AgentLease, float]] = {}
    try:
        items = client.list(collection(agent_namespace)).get("items") or []
    except (Forbidden, NotFound):
        return found
    for raw in items:
        written_s = fault_report.written_s(raw.get("metadata") or {})
        with contextlib.suppress(ObjectError):
            lease = lease_of(raw)
            if lease is not None and written_s is not None:
                found[lease.node] = lease, min(written_s, now_s)
    return found
