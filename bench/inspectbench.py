"""What the scheduled inspection of a node costs: CPU time of the agent's inspector and all it starts, a round.

python -m bench.inspectbench [--rounds N]            measures, and prints a line of JSON for each node
python -m bench.inspectbench --take [--rounds N]     the same, into .bench/data and docs/inspection.md

The real inspector of the agent runs rounds one after the other, with the agent's defaults; the share of a core is for
the default interval. Two nodes: this machine as it is, and one with eight GPUs, of a library that answers as NVML does
without a device behind it. Not counted: the request to the API server, one a round. It is CPU time; on a busy machine
of two threads a core it is half as much again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import machine
from kcover_ebpf.agent.main import AgentOptions
from kcover_ebpf.agent.node_health.inspector import Inspector, InspectorOptions
from kcover_ebpf.errors import ApiError
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.registry import CHECKS
from kcover_ebpf.inspection.result import Cost
from kcover_ebpf.inspection.round import RoundOptions
from kcover_ebpf.inspection.schedule import scheduled
from kcover_ebpf.kube.client import ApiClient
from testbed.driver import nvml_stub
from tools.pages import ROOT, data_file

_PAGE = ROOT / "docs/inspection.md"
_BEGIN = "<!-- Measured by bench/inspectbench.py: run it with --take. -->\n"
_END = "<!-- Until here: cost. -->\n"
_GOAL = 0.0005
"""Of a core, on average."""
_GPUS = 8


class _NoServer(ApiClient):
    """Takes what is published."""

    def __init__(self) -> None:
        self.count = 0

    def apply(self, path: str, body: dict[str, Any], manager: str) -> dict[str, Any]:
        del path, manager
        self.count += 1
        return body


def _used_s() -> float:
    """CPU time of this process and of all that it waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(item.ru_utime + item.ru_stime for item in map(resource.getrusage, kinds))


def measure(wanted_options: RoundOptions, rounds: int) -> list[float]:
    """CPU seconds of each round, the agent's part with it."""
    server = _NoServer()

    def refused(verb: str, what: str, error: ApiError) -> None:
        raise SystemExit(f"{verb} {what}: {error}")

    with tempfile.TemporaryDirectory() as folder:
        options = InspectorOptions("n1", 0.1, Path(folder) / "health.json", wanted_options)
        inspector = Inspector(server, options, refused)
        thread = threading.Thread(target=inspector.run)
        found: list[float] = []
        thread.start()
        before_s = _used_s()
        while len(found) < rounds:
            seen = server.count
            while server.count == seen:
                time.sleep(0.05)
            now_s = _used_s()
            found.append(now_s - before_s)
            before_s = now_s
        inspector.close()
        thread.join()
    return found


def _with_gpus(folder: Path) -> RoundOptions:
    """All that a node with GPUs and RDMA runs."""
    script = folder / "script"
    script.write_text(f"count -1 {_GPUS}\n")
    os.environ.update(nvml_stub.environ(nvml_stub.build(folder), script))
    names = {check.name for check in scheduled((), (), InspectionOptions())} | {
        "nvml",
        "modules",
        "rdma",
    }
    light = [check.name for check in CHECKS if check.cost is Cost.LIGHT and check.name in names]
    return RoundOptions(tuple(light))


def line(name: str, checks: int, seconds: Sequence[float]) -> dict[str, Any]:
    """One line of the raw results."""
    interval_s = AgentOptions("", "", Path()).inspect_every_s
    mean_s = sum(seconds) / len(seconds)
    return {
        "node": name,
        "checks": checks,
        "rounds": len(seconds),
        "least_s": round(min(seconds), 3),
        "mean_s": round(mean_s, 3),
        "most_s": round(max(seconds), 3),
        "interval_s": interval_s,
        "core_share": round(mean_s / interval_s, 6),
        "processes": sum(path.name.isdecimal() for path in Path("/proc").iterdir()),
        "load": round(os.getloadavg()[0], 1),
        "machine": machine.described(),
    }


def table(lines: Sequence[dict[str, Any]]) -> str:
    """For the page."""
    goal = f"{_GOAL:.2%}"
    head = (
        "\n`python -m bench.inspectbench`: the agent's inspector and all it starts, CPU time. "
        f"Goal: less than {goal} of a core on average.\n\n"
        "| node | checks | a round (least to most) | of a core, every 600 s | goal |\n"
        "|---|---|---|---|---|\n"
    )
    rows = [
        f"| {one['node']} | {one['checks']} | {one['mean_s']} s "
        f"({one['least_s']} to {one['most_s']} s, {one['rounds']} rounds) | "
        f"{one['core_share']:.3%} | {'reached' if one['core_share'] < _GOAL else 'missed'} |\n"
        for one in lines
    ]
    last = lines[-1]
    where = f"\nOn {last['machine']}, {last['processes']} processes, load {last['load']}.\n\n"
    return head + "".join(rows) + where


def main() -> None:
    """As the first lines say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--take", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    here = len(scheduled((), (), InspectionOptions()))
    lines = [line("without a GPU", here, measure(RoundOptions(), chosen.rounds))]
    with tempfile.TemporaryDirectory() as folder:
        wanted = _with_gpus(Path(folder))
        found = measure(wanted, chosen.rounds)
        lines.append(line("with 8 GPUs that answer at once", len(wanted.checks), found))
    text = "".join(json.dumps(one) + "\n" for one in lines)
    print(text, end="")
    if chosen.take:
        data_file("inspection.jsonl").write_text(text)
        page = _PAGE.read_text()
        before, _, rest = page.partition(_BEGIN)
        after = rest.partition(_END)[2]
        _PAGE.write_text(before + _BEGIN + table(lines) + _END + after)


if __name__ == "__main__":
    main()
