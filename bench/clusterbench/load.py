"""What the agents of one GPU job write, and what that costs: `python -m bench.clusterbench rates|load`.

`rates.py` says how often agents write, by their own code and that of an earlier commit; in `load` simulated agents
write so often, before and after in one run, and the CPU of API server, etcd and controller is counted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from bench.clusterbench.agents import Agents, beating, build
from bench.clusterbench.meter import Meter
from bench.clusterbench.plane import (
    NAMESPACE,
    ROOT,
    SELECTOR,
    Controller,
    make_job,
    make_nodes,
    wait,
)
from kcover_ebpf.agent.reports.report_pace import Pace
from kcover_ebpf.api import fault_report
from kcover_ebpf.kube.client import ApiClient

_RATES = Path(__file__).with_name("rates.py")
_SETTLE_S = 20
_HOUR_S = 3600.0


def rates(folder: Path, nodes: int, commit: str) -> dict[str, Any]:
    """Writes and bytes per second of a number of agents, by state, with the package of a commit and with this one.

    Raises SystemExit where there is no such commit, or where its package lacks what is measured.
    """
    archive = subprocess.run(
        ["git", "archive", commit, "kcover_ebpf"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode != 0:
        _refuse(f"no commit {commit}: name one with --commit")
    (folder / "before").mkdir()
    unpack = ["tar", "-x", f"--directory={folder / 'before'}"]
    subprocess.run(unpack, input=archive.stdout, check=True)
    return {
        "nodes": nodes,
        "commit": commit,
        "before": _rates(folder / "before", nodes),
        "after": _rates(ROOT, nodes),
    }


def _refuse(why: str) -> NoReturn:
    print(f"clusterbench: {why}", file=sys.stderr)
    sys.exit(2)


def _rates(package: Path, nodes: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, _RATES, str(nodes)],
        cwd=package,
        env=os.environ | {"PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        why = done.stderr.strip().rpartition("\n")[2]
        _refuse(f"that package cannot be measured ({why}): name a newer one with --commit")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def load(
    client: ApiClient, kubeconfig: Path, folder: Path, nodes: int, span_s: int
) -> dict[str, Any]:
    """The cost of the writes of a number of agents, calm and stalled."""
    found: dict[str, Any] = {"nodes": nodes, "span_s": span_s}
    pace = Pace(nodes)
    make_nodes(client, nodes)
    gang = make_job(client, "llm", range(nodes))
    program, log = build(folder), folder / "controller.log"
    controller = Controller(kubeconfig, log, "--dry-run")
    try:
        wait("leading", lambda: "leading" in log.read_text(), 120)
        # report and node's report each 30 s; then a renewal each 30 s, and a report each ten minutes
        time.sleep(_SETTLE_S)
        meter, began_s = Meter(client), time.monotonic()
        time.sleep(span_s)
        # what all of it costs without a single agent: to be taken off the others
        found["idle"] = _costs(meter, time.monotonic() - began_s, nodes)
        for name, state, report_s, lease_s in (
            ("calm before", "training", 15.0, None),
            ("calm after", "training", pace.refresh_s, pace.heartbeat_s),
            ("stalled before", "stalled", 1.0, None),
            ("stalled after", "stalled", pace.refresh_s, pace.fast_s(nodes)),
        ):
            bodies = [report_of(index, pod, nodes, state) for index, pod in enumerate(gang)]
            agents = Agents(program, client, beating(bodies, report_s, lease_s), listening=False)
            try:
                time.sleep(_SETTLE_S)
                meter, began_s = Meter(client), time.monotonic()
                time.sleep(span_s)
                found[name] = _costs(meter, time.monotonic() - began_s, nodes)
            finally:
                agents.stop()
            print(name, found[name], flush=True)
    finally:
        controller.stop()
    return found


def report_of(
    index: int, pod: dict[str, Any], nodes: int, state: str, at_s: float | None = None
) -> dict[str, Any]:
    """What the agent of node `index` reports of its pod of a gang on a number of nodes, in a state of `rates.STATES`.

    `at_s`: seconds after the state began; None: a very long time.
    """
    now_s = time.time()
    began_s = now_s - 1.7e9 if at_s is None else at_s
    made = replace(_module().draft(f"n{index}", began_s, nodes, state), time_s=now_s)
    body: dict[str, Any] = fault_report.object_of(made, NAMESPACE, f"llm.n{index}")
    uid = pod["metadata"]["uid"]
    body["spec"]["job"]["selector"] = {SELECTOR: "llm"}
    body["spec"]["pods"] = [{"name": pod["metadata"]["name"], "uid": uid}]
    for number, rank in enumerate(body["spec"].get("ranks", ())):
        rank |= {"podUID": uid, "rank": index * 8 + number}
    return body


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rates", _RATES)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def _costs(meter: Meter, span_s: float, nodes: int) -> dict[str, Any]:
    spent = meter.spent()
    writes = spent["requests"].get("PATCH", 0) + spent["requests"].get("APPLY", 0)
    hours = nodes * span_s / _HOUR_S
    return {
        "writes_per_s": round(writes / span_s, 1),
        "cpu_share": {name: round(cpu_s / span_s, 3) for name, cpu_s in spent["cpu_s"].items()},
        "controller_cpu_ms_per_node_hour": round(
            spent["cpu_s"].get("kcover-ebpf", 0) * 1e3 / hours
        ),
    }
