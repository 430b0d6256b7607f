"""`kcover-ebpf upload`: copies the archives that the agent of this node keeps into a store."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import click

from kcover_ebpf.cli.options import metrics_option, store_options
from kcover_ebpf.tunables.sending import SILENT_S

_EXAMPLES = """
\b
Examples:
  kcover-ebpf upload --from /var/lib/kcover-ebpf/bundles --to s3://incidents/prod --credentials /etc/store
  kcover-ebpf upload --from /var/lib/kcover-ebpf/bundles --to /mnt/incidents

\b
Exit codes:
  0 ended by a signal; 2 wrong usage
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--from",
    "bundles",
    required=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder of the agent's bundles: `bundles` in its --state-dir.",
)
@click.option(
    "--to",
    required=True,
    metavar="STORE",
    help="Address of the store: s3://BUCKET/PREFIX or /FOLDER.",
)
@store_options
@click.option(
    "--credentials",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with the files accessKey, secretKey and optionally sessionToken; reread before each request; "
    "default: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.",
)
@click.option(
    "--node", envvar="NODE_NAME", help="Name of this node; default: NODE_NAME, or the host's name."
)
@metrics_option("Serve Prometheus metrics and /healthz at this address.")
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least severe messages to log.",
)
def upload(  # noqa: PLR0913, PLR0917 - one argument for each option
    bundles: Path,
    to: str,
    endpoint: str,
    region: str,
    credentials: Path | None,
    node: str | None,
    metrics: str | None,
    log_level: str,
) -> int:
    """Copy the parts of archives that the agent of this node keeps into a store, so that they survive the node.

    Runs until a signal ends it. Needs permission to read the folder, and no other privilege.
    """
    from kcover_ebpf.output import log_lines
    from kcover_ebpf.output.metrics import MetricsServer, parse_address
    from kcover_ebpf.stores.opened import opened
    from kcover_ebpf.stores.store import store_address
    from kcover_ebpf.stores.uploader import Uploader, UploadMetrics

    log_lines.configure(log_level)
    store = opened(store_address(to, endpoint, region), credentials)
    server = MetricsServer(parse_address(metrics)) if metrics else None
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    counts = UploadMetrics()
    uploader = Uploader(bundles, node or socket.gethostname(), store, counts.on_result)
    counts.follow(uploader)
    if server is not None:
        server.serve(counts.registry, {"/healthz": lambda: _wrong(uploader.turn_s)})
    uploader.run(ending)
    if server is not None:
        server.close()
    return 0


def _wrong(turn_s: float) -> str:
    silent_s = time.monotonic() - turn_s
    return f"no pass over the folder for {silent_s:.0f} s" if silent_s > SILENT_S else ""
