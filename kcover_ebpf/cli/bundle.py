"""What a snapshot keeps of a job in trouble, as texts. Pure."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable

from kcover_ebpf import report
from kcover_ebpf.facts import SocketSample
from kcover_ebpf.incidents.verdict import Verdict


def name_of(verdict: Verdict) -> str:
    """A directory name that sorts by time: 20260102T030405.678Z-train-1-HUNG."""
    clock = time.strftime("%Y%m%dT%H%M%S", time.gmtime(verdict.time_s))
    milliseconds = int(verdict.time_s % 1 * 1000)
    incident = re.sub(r"[^\w.-]", "_", verdict.incident or verdict.job)[:80]
    return f"{clock}.{milliseconds:03d}Z-{incident}-{verdict.kind.value}"


def files(
    verdict: Verdict, sockets: Iterable[SocketSample], recent: Iterable[str]
) -> dict[str, str]:
    """File name -> text; `recent` are the JSON lines of the last facts."""
    headline = [report.headline(verdict), *report.details(verdict)]
    return {
        "verdict.json": json.dumps(report.verdict_object(verdict), indent=2) + "\n",
        "verdict.txt": "\n".join(headline) + "\n",
        "waits.txt": "\n".join(report.wait_table(verdict.waits)) + "\n",
        "sockets.txt": "\n".join(_socket_table(sockets)) + "\n",
        "facts.jsonl": "".join(f"{line}\n" for line in recent),
    }


_TITLES = (
    "PID",
    "FD",
    "STATE",
    "LOCAL",
    "REMOTE",
    "UNREAD",
    "UNSENT",
    "UNACKED",
    "RETRANSMITS",
    "BACKOFF",
)


def _socket_table(sockets: Iterable[SocketSample]) -> list[str]:
    rows = [
        (
            str(each.pid),
            str(each.fd),
            each.state,
            report.address(each.local),
            report.address(each.remote),
            str(each.unread_bytes),
            str(each.unsent_bytes),
            str(each.unacked_bytes),
            str(each.retransmit_count),
            str(each.backoff),
        )
        for each in sorted(sockets, key=lambda each: (each.pid, each.fd))
    ]
    return report.aligned([_TITLES, *rows])
