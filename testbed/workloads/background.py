"""What ordinary training jobs do in addition to training: metrics, logs, telemetry, helper programs, a monitor.

    python -m testbed.workloads.background collect ADDRESS PORT   # the collector, outside of the job
    python -m testbed.workloads.background monitor   # a process with RANK that trains nothing
    python -m testbed.workloads.background watch   # a child that every rank keeps for as long as it lives

Every rank does the same, which distinguishes none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PERIOD_S = 0.1
CPU_S = 0.006
"""CPU of the metrics thread in each period: 6%."""
LOG_LINE = b"INFO step time 0.2 s, loss 0.1\n".rjust(100, b".")
LOG_LINES = 20
"""Lines in each period: 20 KB/s."""
TELEMETRY_PERIOD_S = 0.5
TELEMETRY = b"loss 0.1\n" * 100
ANSWER = b"taken\n"
CHILD_PERIOD_S = 7.0
CHILD_MIB = 40
"""What a helper program reads and sums up: some tenths of a second of CPU."""
WATCH_PERIOD_S = 0.2
WATCH_CPU_S = 0.01
"""CPU of the child that is kept in each period: 5%."""
MONITOR_PERIOD_S = 0.5
CONNECT_LIMIT_S = 2.0
BLOCK = bytes(1 << 15)


def begin(folder: Path, rank: int, collector: str) -> None:
    """Begin the side threads of a rank: logs in `folder`, telemetry to the collector of that HOST:PORT."""
    works: tuple[tuple[Callable[..., None], tuple[object, ...]], ...] = (
        (measure, ()),
        (write_logs, (folder / f"log-{rank}",)),
        (report_to, (collector,)),
        (run_children, (rank,)),
    )
    # it ends by itself
    subprocess.Popen([sys.executable, "-m", __spec__.name, "watch"], stdin=subprocess.DEVNULL)
    for work, given in works:
        threading.Thread(target=work, args=given, daemon=True).start()


def repeat(work: Callable[[], object], period_s: float) -> None:
    """Do a piece of work once a period, for ever."""
    while True:
        begun = time.monotonic()
        work()
        time.sleep(max(0.0, period_s - (time.monotonic() - begun)))


def burn(cpu_s: float) -> None:
    """Use the given CPU time (not wall time), so that it takes the same share where CPUs are rare."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        hashlib.sha256(BLOCK).digest()


def measure() -> None:
    """Use a share of a CPU, as threads that sum up metrics or watch a profile do."""
    repeat(lambda: burn(CPU_S), PERIOD_S)


def watch() -> None:
    """Wake some times a second until its rank ends, as a program that reports for it does."""
    rank_pid = os.getppid()
    while os.getppid() == rank_pid:
        burn(WATCH_CPU_S)
        time.sleep(WATCH_PERIOD_S)


def write_logs(path: Path) -> None:
    """Write log lines into a file."""
    with open(path, "wb", buffering=0) as file:
        repeat(lambda: [file.write(LOG_LINE) for _ in range(LOG_LINES)], PERIOD_S)


def report_to(collector: str) -> None:
    """Send telemetry and read the answer; a connection that fails is made again."""
    host, port = collector.rsplit(":", 1)

    def send() -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host, int(port)), CONNECT_LIMIT_S) as connection,
        ):
            connection.settimeout(None)
            while True:
                connection.sendall(TELEMETRY)
                if not connection.recv(len(ANSWER)):
                    return
                time.sleep(TELEMETRY_PERIOD_S)

    repeat(send, TELEMETRY_PERIOD_S)


def run_children(rank: int) -> None:
    """Run a busy helper program now and then; the ranks do not do it at the same time."""
    time.sleep(rank % int(CHILD_PERIOD_S))
    command = ["sh", "-c", f"head -c {CHILD_MIB}M /dev/zero | sha256sum >/dev/null"]
    repeat(lambda: subprocess.run(command, stdin=subprocess.DEVNULL, check=False), CHILD_PERIOD_S)


class Taking(socketserver.BaseRequestHandler):
    """Answers each piece of telemetry."""

    rest = 0
    """Bytes of a piece that has not come whole yet."""

    def handle(self) -> None:
        """Serve one rank until it leaves."""
        with contextlib.suppress(OSError):
            while taken := self.request.recv(1 << 16):
                # an answer for each whole piece, however it was cut on the way
                self.rest += len(taken)
                for _ in range(self.rest // len(TELEMETRY)):
                    self.request.sendall(ANSWER)
                self.rest %= len(TELEMETRY)


class Collector(socketserver.ThreadingTCPServer):
    """A service that every rank sends to."""

    daemon_threads = True
    allow_reuse_address = True


def collect(address: str, port: int) -> None:
    """Serve until ended."""
    with Collector((address, port), Taking) as server:
        server.serve_forever()


def monitor() -> None:
    """Read the load of the machine for ever, as a rank's watchdog or exporter does; its environment has RANK."""
    repeat(lambda: Path("/proc/self/stat").read_text() and os.getloadavg(), MONITOR_PERIOD_S)


def main() -> None:
    """Be a collector, a monitor or a child that is kept."""
    if sys.argv[1] == "monitor":
        monitor()
    elif sys.argv[1] == "watch":
        watch()
    else:
        collect(sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()
