"""`python -m bench.clusterbench gang`: one gang on a part of a large cluster, calm and then with one rank that stops.

The API server and the controller are real; agents are simulated, one for each node, and write what and as often as
`agent.reports` does in a cluster of that size. The controller makes a dry run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.clusterbench.agents import Agents, beating, build
from bench.clusterbench.load import report_of
from bench.clusterbench.meter import Meter
from bench.clusterbench.plane import NAMESPACE, Controller, make_job, make_nodes, wait
from kcover_ebpf.agent.reports.report_pace import Pace
from kcover_ebpf.api import fault_report, rfc3339
from kcover_ebpf.api.fault_report import FaultReport
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.model.process_state import State

_INCIDENTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/incidents"
_JOB = "llm"
RANKS = 8
"""Of each node."""
_SETTLE_S = 20
_SILENT_S = 3.0
"""The first reports of a stall come when it is certain: ranks have made no progress for twice as long."""
_LATEST_S = 300.0


def gang(
    client: ApiClient, kubeconfig: Path, folder: Path, nodes: int, gang_nodes: int, span_s: int
) -> dict[str, Any]:
    """A gang of `gang_nodes` nodes with eight ranks each, among `nodes`: until its one stopped rank is named."""
    pace, idle = Pace(nodes), [_of_node(f"n{index}") for index in range(nodes)]
    make_nodes(client, nodes)
    pods = make_job(client, _JOB, range(gang_nodes))
    program, log = build(folder), folder / "controller.log"
    controller = Controller(kubeconfig, log, "--dry-run")
    started: list[Agents] = []
    try:
        wait("leading", lambda: "leading" in log.read_text(), 120)
        node_beats = beating(idle, pace.refresh_s, pace.heartbeat_s)
        started.append(Agents(program, client, node_beats, listening=False))
        calm = [report_of(index, pod, gang_nodes, "training") for index, pod in enumerate(pods)]
        gang_agents = Agents(program, client, beating(calm, pace.refresh_s, None), listening=False)
        started.append(gang_agents)
        time.sleep(_SETTLE_S)
        meter, began_s = Meter(client), time.monotonic()
        time.sleep(span_s)
        found = {"calm": _costs(meter, time.monotonic() - began_s, controller)}
        gang_agents.stop()
        stopped = gang_nodes * RANKS // 3
        still = [stalled(index, pod, gang_nodes, stopped) for index, pod in enumerate(pods)]
        fault_s, meter, began_s = time.time(), Meter(client), time.monotonic()
        beats = beating(still, pace.refresh_s, None)
        started.append(Agents(program, client, beats, listening=False))
        reported_s = time.time()
        wait("a culprit is named", lambda: _named(client) is not None, _LATEST_S)
        culprit, named_s = _named(client) or ({}, 0.0)
        found["fault"] = _costs(meter, time.monotonic() - began_s, controller)
        found["named"] = {
            "is_right": culprit.get("rank") == stopped,
            "after_first_report_s": round(named_s - fault_s, 2),
            "last_report_came_s": round(reported_s - fault_s, 2),
        }
    finally:
        controller.stop()
        for agents in started:
            agents.stop()
    return {"nodes": nodes, "gang_nodes": gang_nodes, "ranks": gang_nodes * RANKS, **found}


def _of_node(node: str) -> dict[str, Any]:
    """The report of an agent about its node, without a gang."""
    return fault_report.object_of(FaultReport(node, time.time(), 1, "0.1.0"), NAMESPACE, node)


def stalled(index: int, pod: dict[str, Any], gang_nodes: int, stopped: int) -> dict[str, Any]:
    """What the agent of a node reports while all ranks wait for the one that is stopped."""
    body = report_of(index, pod, gang_nodes, "stalled", _SILENT_S)
    if index == stopped // RANKS:
        # it has been stopped for longer than the policy's time
        rank = body["spec"]["ranks"][stopped % RANKS]
        rank.update({"state": State.STOPPED.value, "text": "stopped by SIGSTOP"})
    return body


def _named(client: ApiClient) -> tuple[dict[str, Any], float] | None:
    """The culprit of the incident and when it was first seen there, unix seconds; None before."""
    for raw in client.list(_INCIDENTS).get("items") or ():
        status = raw.get("status") or {}
        if (culprit := status.get("culprit")) is not None:
            times = [rfc3339.from_text(moment["time"]) for moment in status.get("timeline") or ()]
            return culprit, min(times, default=time.time())
    return None


def _costs(meter: Meter, span_s: float, controller: Controller) -> dict[str, Any]:
    spent = meter.spent()
    requests = spent["requests"]
    writes = sum(requests.get(verb, 0) for verb in ("PATCH", "APPLY", "POST", "PUT", "DELETE"))
    return {
        "span_s": round(span_s, 1),
        "writes_per_s": round(writes / span_s, 1),
        "requests": requests,
        "cpu_share": {name: round(cpu_s / span_s, 3) for name, cpu_s in spent["cpu_s"].items()},
        "controller_rss_mb": round(controller.rss_mb(), 1),
    }
