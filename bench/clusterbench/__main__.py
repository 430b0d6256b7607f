"""How fast and how dear we are in a cluster: `python -m bench.clusterbench decide|delete|orders|gang|turn|...`.

No node runs there. Nodes and pods are objects, and agents are simulated, so that what is measured is the
controller and the API server it talks to. Both share this machine with everything else that runs on it.
`in-place`, `hybrid` and `replace` restart a small job on the real cluster of $KUBECONFIG; `slow` makes a rank there
1.3 times slower, in each of `--jobs` jobs at once; `agent` measures an agent there with `--ranks` ranks on its node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.clusterbench.agent import agent
from bench.clusterbench.agents import Agents, build, obedient
from bench.clusterbench.gang import gang
from bench.clusterbench.load import load, rates
from bench.clusterbench.meter import Meter
from bench.clusterbench.needs import AGENT, ON_CLUSTER, SLOW, WAYS, lack, programs
from bench.clusterbench.plane import (
    NAMESPACE,
    Controller,
    cluster,
    in_parallel,
    make_job,
    make_nodes,
    report_body,
    wait,
)
from bench.clusterbench.receiver import Receiver, receiver
from bench.clusterbench.restart import restart
from bench.clusterbench.slow import slow
from bench.clusterbench.without_server import turn
from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.order import Verb
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.kube.reflector import Change, Event, Reflector
from kcover_ebpf.model.verdict import Cause, Culprit, Evidence, EvidenceKind, Verdict, VerdictKind
from tools.pages import DATA

_REPORTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/faultreports"
_INCIDENTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/incidents"
_PODS_PER_JOB = 2
"""Reports come from more nodes than pods are made on: an API server with 1,500 pods more is no part of the question."""
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def crashed(pod: dict[str, Any]) -> Verdict:
    """An announced fault of one rank."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    culprit = Culprit(rank=0, pid=1, pod=name, pod_uid=uid)
    reported = (Evidence(EvidenceKind.EVENT, "rank 0 died by SIGSEGV"),)
    return Verdict(
        VerdictKind.CRASHED,
        Cause.SEGFAULT,
        since_s=time.time() - 0.1,
        culprit=culprit,
        evidence=reported,
    )


def left_early(pod: dict[str, Any]) -> Verdict:
    """An announced fault after which the others wait: all of them are stopped and killed."""
    return replace(crashed(pod), cause=Cause.LEFT_EARLY)


def send(client: ApiClient, job: str, node: str, pods: list[dict[str, Any]], **more: Any) -> None:
    """One report of one agent."""
    client.apply(f"{_REPORTS}/{job}.{node}", report_body(job, node, pods, **more), "kcover-agent")


class Seen:
    """When a watcher first saw each job's incident decided."""

    def __init__(self, client: ApiClient) -> None:
        self.at_s: dict[str, float] = {}
        Reflector(client, _INCIDENTS, {}, self._on_event).start()

    def _on_event(self, event: Event) -> None:
        timeline = (event.object.get("status") or {}).get("timeline") or ()
        if any(line["phase"] == "Decided" for line in timeline):
            self.at_s.setdefault(event.object["spec"]["job"]["name"], time.time())


def phase_times(client: ApiClient, phase: str) -> dict[str, float]:
    """When each job's incident came to a phase; unix seconds."""
    found: dict[str, float] = {}
    for raw in client.list(_INCIDENTS).get("items") or ():
        for line in (raw.get("status") or {}).get("timeline") or ():
            if line["phase"] == phase:
                found.setdefault(raw["spec"]["job"]["name"], rfc3339.from_text(line["time"]))
    return found


def decide(
    client: ApiClient,
    kubeconfig: Path,
    folder: Path,
    nodes: int,
    jobs: int,
    messages: Receiver | None = None,
) -> dict[str, Any]:
    """Many jobs break at once in a large cluster: seconds from each report to `Decided`.

    `messages`: who is sent one about each of them; None: no one is.
    """
    make_nodes(client, nodes)
    made: dict[int, list[dict[str, Any]]] = {}
    share = nodes // jobs

    def one(index: int) -> None:
        job, first = f"job{index}", index * share
        made[index] = make_job(client, job, range(first, first + _PODS_PER_JOB), False)
        for node in range(first, first + share):
            send(client, job, f"n{node}", made[index][node - first : node - first + 1])

    in_parallel(one, jobs)
    options = messages.wanted(client) if messages is not None else ()
    controller = Controller(kubeconfig, folder / "controller.log", *options)
    try:
        log = folder / "controller.log"
        wait("leading", lambda: "leading" in log.read_text(), 120)
        time.sleep(15)
        idle_mb, meter = controller.rss_mb(), Meter(client)
        sent: dict[str, float] = {}
        seen = Seen(client)

        def fault(index: int) -> None:
            job, pods = f"job{index}", made[index]
            send(client, job, f"n{index * share}", [pods[0]], verdict=crashed(pods[0]))
            sent[job] = time.time()

        in_parallel(fault, jobs)
        wait("all decided", lambda: len(seen.at_s) >= jobs, 180)
        decided = meter.spent()
        time.sleep(15)
        spent, peak_mb = meter.spent(), controller.rss_mb()
    finally:
        controller.stop()
    took = sorted(seen.at_s[job] - at_s for job, at_s in sent.items())
    return {
        "nodes": nodes,
        "jobs": jobs,
        "reports": share * jobs,
        "messages": messages.count if messages is not None else None,
        "decided_s": _spread(took),
        "rss_idle_mb": round(idle_mb, 1),
        "rss_after_mb": round(peak_mb, 1),
        "until_decided": decided,
        "in_all": spent,
    }


def delete(
    client: ApiClient, kubeconfig: Path, folder: Path, nodes: int, pods: int
) -> dict[str, Any]:
    """One large gang is replaced: seconds from the verdict until every pod is marked as deleted.

    The first pod is marked by hand, as the job's own controller would; the rest is ours.
    """
    make_nodes(client, nodes)
    gang = make_job(client, "big", (index % nodes for index in range(pods)), False)
    marked: dict[str, float] = {}

    def on_event(event: Event) -> None:
        metadata = event.object.get("metadata") or {}
        if event.change is Change.GONE or metadata.get("deletionTimestamp"):
            marked.setdefault(str(metadata.get("uid")), time.time())

    Reflector(client, _PODS, {}, on_event).start()
    controller = Controller(kubeconfig, folder / "controller.log")
    try:
        send(client, "big", "n0", gang[:1])
        wait("leading", lambda: "leading" in (folder / "controller.log").read_text(), 120)
        time.sleep(5)
        send(client, "big", "n0", gang[:1], verdict=crashed(gang[0]))
        meter, job = Meter(client), f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/big"
        wait("suspended", lambda: client.get(job)["spec"].get("suspend") is True, 120)
        first_s = time.time()
        client.delete(f"{_PODS}/big-1", None, 30)
        wait("all marked", lambda: len(marked) >= pods, 180)
        spent = meter.spent()
    finally:
        controller.stop()
    start_s = phase_times(client, "ShuttingDown")["big"]
    last_s = max(marked.values())
    return {
        "pods": pods,
        "verdict_to_all_marked_s": round(last_s - start_s, 3),
        "first_mark_to_all_marked_s": round(last_s - first_s, 3),
        **spent,
    }


def orders(
    client: ApiClient, kubeconfig: Path, folder: Path, nodes: int, by_lease: bool
) -> dict[str, Any]:
    """One large gang is restarted in place by simulated agents: seconds from the first stop to the last kill."""
    make_nodes(client, nodes)
    gang = make_job(client, "big", range(nodes))
    agents = Agents(build(folder), client, obedient("big", gang, by_lease))
    controller = Controller(kubeconfig, folder / "controller.log")
    try:
        wait("leading", lambda: "leading" in (folder / "controller.log").read_text(), 120)
        time.sleep(10)
        meter, idle_mb = Meter(client), controller.rss_mb()
        send(client, "big", "n0", gang[:1], verdict=left_early(gang[0]))
        wait("all back, or let go", lambda: _is_over(client, "big"), 240)
        spent, peak_mb = meter.spent(), controller.rss_mb()
    finally:
        controller.stop()
        agents.stop()
    stops, kills = agents.all_heard(Verb.STOP), agents.all_heard(Verb.KILL)
    start_s = phase_times(client, "ShuttingDown")["big"]
    return {
        "agents": nodes,
        "answers": "leases" if by_lease else "reports",
        "restarted_in_place": len(kills) == nodes,
        "order_to_all_stopped_s": round(stops[-1] - start_s, 3) if stops else None,
        "first_stop_to_last_kill_s": round(kills[-1] - stops[0], 3) if stops and kills else None,
        "stops": len(stops),
        "kills": len(kills),
        "rss_idle_mb": round(idle_mb, 1),
        "rss_after_mb": round(peak_mb, 1),
        **spent,
        "timeline": _timeline(client, "big"),
    }


def _is_over(client: ApiClient, job: str) -> bool:
    story = "\n".join(_timeline(client, job))
    return "Recovering" in story or "resuming ranks" in story


def _timeline(client: ApiClient, job: str) -> list[str]:
    found = []
    for raw in client.list(_INCIDENTS).get("items") or ():
        if raw["spec"]["job"]["name"] == job:
            lines = (raw.get("status") or {}).get("timeline") or ()
            first_s = rfc3339.from_text(lines[0]["time"]) if lines else 0.0
            found = [
                f"{rfc3339.from_text(line['time']) - first_s:+.3f} {line['phase']}: {line['text']}"
                for line in lines
            ]
    return found


def _spread(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else values * 99
    return {
        "p50": round(cuts[49], 3),
        "p90": round(cuts[89], 3),
        "p99": round(cuts[98], 3),
        "max": round(values[-1], 3),
    }


def _run(
    asked: argparse.Namespace, client: ApiClient, kubeconfig: Path, folder: Path
) -> dict[str, Any]:
    if asked.scenario == "decide":
        with receiver(folder, is_wanted=asked.messages) as messages:
            return decide(client, kubeconfig, folder, asked.nodes, asked.jobs, messages)
    if asked.scenario == "delete":
        return delete(client, kubeconfig, folder, asked.nodes, asked.pods)
    if asked.scenario == "gang":
        return gang(client, kubeconfig, folder, asked.nodes, asked.gang_nodes, asked.span)
    if asked.scenario == "load":
        return load(client, kubeconfig, folder, asked.nodes, asked.span)
    return orders(client, kubeconfig, folder, asked.nodes, asked.answers == "leases")


def _simulate(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    with cluster(folder, asked.bin / "kube-apiserver") as (session, kubeconfig):
        try:
            return _run(asked, session, kubeconfig, folder)
        except TimeoutError:
            print((folder / "controller.log").read_text()[-3000:])
            raise


def _on_cluster(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    kubeconfig = Path(os.environ["KUBECONFIG"])
    if asked.scenario == SLOW:
        return slow(kubeconfig, folder, asked.jobs)
    if asked.scenario == AGENT:
        return agent(kubeconfig, folder, asked.ranks)
    return restart(kubeconfig, folder, WAYS[asked.scenario])


def _eights(text: str) -> int:
    if not text.isdecimal() or int(text) % 8:
        raise argparse.ArgumentTypeError("must be 0 or a multiple of 8")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "scenario",
        choices=["decide", "delete", "orders", "gang", "turn", "load", "rates", *ON_CLUSTER],
    )
    parser.add_argument("--nodes", type=int, default=1500)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument(
        "--gang-nodes", type=int, default=1280, help="gang, turn: nodes of the gang"
    )
    parser.add_argument("--ranks", type=_eights, default=8, help="agent: 0, or a multiple of 8")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--answers", choices=["leases", "reports"], default="leases", help="of agents to orders"
    )
    parser.add_argument(
        "--messages", action="store_true", help="decide: about each incident, to a slow receiver"
    )
    parser.add_argument("--commit", default="HEAD~1", help="rates: the package to compare with")
    parser.add_argument(
        "--span", type=int, default=60, help="gang, load: seconds of each measurement"
    )
    parser.add_argument("--bin", type=Path, default=programs())
    parser.add_argument("--record", type=Path, default=DATA / "clusterbench.jsonl")
    return parser


def main() -> None:
    """Run one scenario, and append its numbers to the record."""
    parser = _parser()
    asked = parser.parse_args()
    lacking = lack(asked.scenario, asked.bin)
    if lacking is not None:
        parser.exit(2, f"clusterbench: {lacking}\n")
    for _ in range(asked.runs):
        with tempfile.TemporaryDirectory() as name:
            folder, load = Path(name), os.getloadavg()
            if asked.scenario in ON_CLUSTER:
                found = _on_cluster(asked, folder)
            elif asked.scenario == "rates":
                found = rates(folder, asked.nodes, asked.commit)
            elif asked.scenario == "turn":
                found = turn(asked.nodes, asked.gang_nodes)
            else:
                found = _simulate(asked, folder)
        found = {"scenario": asked.scenario, **found, "load_before": round(load[0], 1)}
        found["load_after"] = round(os.getloadavg()[0], 1)
        found["time"] = rfc3339.to_text(time.time())[:19] + "Z"
        print(json.dumps(found, indent=2), flush=True)
        asked.record.parent.mkdir(parents=True, exist_ok=True)
        with asked.record.open("a", encoding="utf-8") as record:
            record.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
