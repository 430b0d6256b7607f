"""A RAS server of our own: speaks NCCL's text protocol, right and wrong, to one peer at a time."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeRasServer:
    """Answers with `reports` one after the other (the last one again and again)."""

    reports: list[str]
    json_known: bool = True
    silent_first: int = 0
    """Number of connections that are accepted and never answered, as by a stopped process."""
    greeting: str = "SERVER PROTOCOL 2"
    events: list[str] | None = None
    """What a client that asks to MONITOR gets; None: a server before 2.29."""
    port: int = 0
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port), reuse_port=True)
        self._held: list[socket.socket] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def _serve(self) -> None:
        served = 0
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if self._stopping:
                peer.close()
                return
            if self.silent_first > 0:
                self.silent_first -= 1
                self._held.append(peer)
                continue
            # who asked may have heard enough
            with contextlib.suppress(OSError), peer, peer.makefile("rwb") as stream:
                self._talk(stream, self.reports[min(served, len(self.reports) - 1)])
            served += 1

    def _talk(self, stream: Any, report: str) -> None:
        for raw in stream:
            line = raw.decode().strip()
            self.asked.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                answer = self.greeting
            elif line.startswith("SET FORMAT") and not self.json_known:
                answer = "ERROR: unknown command"
            elif line.startswith("MONITOR"):
                if self.events is None:
                    answer = "ERROR: unknown command"
                else:
                    stream.write("\n".join(["OK", *self.events, ""]).encode())
                    stream.flush()
                    return
            elif line.endswith("STATUS"):
                stream.write(report.encode())
                stream.flush()
                return
            else:
                answer = "OK"
            stream.write(answer.encode() + b"\n")
            stream.flush()

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        with socket.create_connection(self.address):
            pass
        self._thread.join(5)
        self._listener.close()
        for peer in self._held:
            peer.close()


def _pid_of(rank: int) -> int:
    return 100 + rank


def _answering(rank: int, pid: int, count: int | None) -> dict[str, object]:
    return {
        "rank": rank,
        "host": "10.0.0.1",
        "pid": pid,
        "cuda_dev": pid % 8,
        "nvml_dev": pid % 8,
        "status": {"init_state": "SUCCESS", "async_error": "SUCCESS"},
        "collective_counts": {"AllReduce": count, "Broadcast": 1},
    }


def json_report(
    counts: Sequence[int | None],
    *,
    missing: Collection[int] = (),
    pid_of: Callable[[int], int] = _pid_of,
    comm: str = "abc",
    drop_comma: bool = False,
) -> str:
    """A report of one communicator; `counts`: AllReduce launches by rank."""
    ranks = [
        _answering(rank, pid_of(rank), count)
        for rank, count in enumerate(counts)
        if rank not in missing
    ]
    absent = [
        {
            "rank": rank,
            "host": "10.0.0.2",
            "pid": pid_of(rank),
            "status": {"unresponsive": True, "considered_dead": rank % 2 == 1},
        }
        for rank in missing
    ]
    table = {
        "nccl_version": "2.28.9",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": comm,
                "size": len(counts),
                "ranks_count": len(ranks),
                "missing_ranks_count": len(absent),
                "ranks": ranks,
                "missing_ranks": absent,
            }
        ],
    }
    text = json.dumps(table, indent=2)
    return text.replace('"host": "10.0.0.2",', '"host": "10.0.0.2"') if drop_comma else text


def joined(*reports: str) -> str:
    """One report of the communicators of several."""
    tables = [json.loads(report) for report in reports]
    tables[0]["communicators"] = [comm for table in tables for comm in table["communicators"]]
    return json.dumps(tables[0])


TEXT_REPORT = """NCCL version 2.26.2 compiled with CUDA 12.8
Job summary
===========
  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation {behind}
  Rank 3 -- GPU 3 managed by process 103 on node 10.0.0.1
  Rank 5 -- GPU 5 managed by process 105 on node 10.0.0.1
"""
INCOMPLETE_TEXT = """Job summary
===========
Errors
======

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 105 on node 10.0.0.2
"""
