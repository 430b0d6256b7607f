"""`kubectl kcover bundle` and `report`: an incident's evidence from all nodes, as an archive and as a page."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Incident, incident_of
from kcover_ebpf.archive.incident_archive import Archive
from kcover_ebpf.cli.kubectl_common import agent_namespace_option, common, object_name, show
from kcover_ebpf.cli.options import store_options
from kcover_ebpf.cli.report import page_text, write
from kcover_ebpf.errors import NotFound, UsageError
from kcover_ebpf.kube.client import ApiClient

if TYPE_CHECKING:
    from kcover_ebpf.stores.store import PartStore

_STORE = click.option(
    "--store",
    metavar="STORE",
    help="s3://BUCKET/PREFIX or /FOLDER, for parts no longer on any node; the credentials are read from "
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.",
)


@click.command("bundle")
@click.argument("incident", callback=object_name)
@click.option(
    "--to",
    metavar="FOLDER",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for the archive; parts that it already contains are not fetched again.",
)
@agent_namespace_option
@_STORE
@store_options
@common
def bundle(  # noqa: PLR0913 - one argument for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    incident: str,
    to: Path,
    agent_namespace: str | None,
    store: str | None,
    endpoint: str,
    region: str,
) -> int:
    """Fetch the evidence that all nodes saved of an incident, merged into one archive.

    `kcover-ebpf report FOLDER` makes a page of it.
    """
    from kcover_ebpf.postmortem import fetch

    fetch.check_folder(to)
    part_store = _store(store, endpoint, region)
    sources = fetch.PartSources(client, agent_namespace, part_store)
    archive = fetch.fetched(sources, _incident(client, namespace, incident), to)
    size_bytes = fetch.write_folder(archive, to)
    if as_json:
        missing = [{"what": part.what, "why": part.why} for part in archive.missing]
        nodes = [part.node for part in archive.parts]
        print(json.dumps({"folder": str(to), "nodes": nodes, "missing": missing}, indent=2))
        return 0
    show(f"{to}: the parts of {len(archive.parts)} nodes, {size_bytes / 1e6:.1f} MB")
    _show_missing(archive)
    return 0


@click.command("report")
@click.argument("incident", callback=object_name)
@click.option(
    "--to",
    metavar="FILE.html",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the page to this file.",
)
@agent_namespace_option
@_STORE
@store_options
@common
def report(  # noqa: PLR0913 - one argument for each option
    *,
    client: ApiClient,
    namespace: str,
    as_json: bool,
    incident: str,
    to: Path,
    agent_namespace: str | None,
    store: str | None,
    endpoint: str,
    region: str,
) -> int:
    """Write the page of an incident: what happened, what was at fault, what was done, and what to do next."""
    from kcover_ebpf.postmortem import fetch

    part_store = _store(store, endpoint, region)
    sources = fetch.PartSources(client, agent_namespace, part_store)
    found_incident = _incident(client, namespace, incident)
    with tempfile.TemporaryDirectory(prefix="kcover-") as folder:
        archive = fetch.fetched(sources, found_incident, Path(folder))
    write(page_text(archive), to)
    if as_json:
        print(json.dumps({"file": str(to), "nodes": [part.node for part in archive.parts]}))
        return 0
    show(f"{to}: the page of incident {incident}, from {len(archive.parts)} nodes")
    _show_missing(archive)
    return 0


def _store(store: str | None, endpoint: str, region: str) -> PartStore | None:
    """The address of a store; raises `UsageError` if it is not one."""
    from kcover_ebpf.stores.opened import opened
    from kcover_ebpf.stores.store import store_address

    return opened(store_address(store, endpoint, region)) if store else None


def _incident(client: ApiClient, namespace: str, name: str) -> Incident:
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/incidents/{name}"
    try:
        return incident_of(client.get(path))
    except NotFound:
        hint = "see kubectl kcover list -A"
        raise UsageError(f"no incident {name} in namespace {namespace}; {hint}") from None


def _show_missing(archive: Archive) -> None:
    for part in archive.missing:
        show(f"missing: {part.what}: {part.why}")
