"""What a bundle keeps of a faulty job, as texts. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from kcover_ebpf.model.verdict import Verdict
from kcover_ebpf.output import formatting
from kcover_ebpf.output.bundles import bundle_name
from kcover_ebpf.trace import tcp_connections
from kcover_ebpf.trace.records import TracedConnection


def name_of(verdict: Verdict) -> str:
    """The name of its directory."""
    incident = re.sub(r"[^\w.-]", "_", verdict.incident or verdict.job)[:80]
    return bundle_name(verdict.time_s, f"{incident}-{verdict.kind.value}")


def files(
    verdict: Verdict, connections: Collection[TracedConnection], recent: Iterable[str]
) -> dict[str, str]:
    """File name -> text; `recent`: facts as JSON lines."""
    headline = [formatting.headline(verdict), *formatting.details(verdict)]
    return {
        "verdict.json": json.dumps(formatting.verdict_object(verdict), indent=2) + "\n",
        "verdict.txt": "\n".join(headline) + "\n",
        "waits.txt": "\n".join(formatting.wait_table(verdict.waits)) + "\n",
        "sockets.txt": "\n".join(tcp_connections.table(connections)) + "\n",
        "facts.jsonl": "".join(f"{line}\n" for line in recent),
    }
