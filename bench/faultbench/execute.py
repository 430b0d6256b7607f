"""Carry out one run: start the job, let it train, inject, watch, stop, write it all down."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.faultbench import host_faults, prepare
from bench.faultbench.job import Job, launch_command, tag_value
from bench.faultbench.judge import Judgement, fault_verdicts, judge, rank_is_right
from bench.faultbench.live import Live, RunFailed, kill_tagged
from bench.faultbench.plan import RunSpec
from bench.faultbench.run_collector import RunCollector
from bench.faultbench.scenario import Effect
from bench.faultbench.truth import Event, effect, first, read_truth
from testbed.workloads import network
from testbed.workloads.training import EventLog

START_LIMIT_S = 180.0
GRACE_S = 2.0
"""How long a job is watched after the right verdict, or after its own end."""


def execute(run: RunSpec, tag: str, work: Path, act: str | None) -> dict[str, Any]:
    """Carry out a run and return its result; `act` None runs without the detector."""
    folder = work / tag
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    jobs: list[Job] = []
    problem = None
    live = None
    with ExitStack() as undo:
        undo.callback(kill_tagged, tag_value(tag))
        try:
            log = EventLog(str(folder / "events.jsonl"), None)
            live = Live(run, tag, folder, log, undo, jobs)
            if run.scenario.prepare:
                live.path = str(prepare.PREPARE[run.scenario.prepare](live))
            collector = RunCollector(live) if run.background else None
            start_jobs(live, jobs, act, collector)
            inject(live)
            watch(live, jobs[0], act)
        except (RunFailed, OSError) as error:
            problem = f"{type(error).__name__}: {error}"
        until = time.time()
        codes = [job.top.poll() for job in jobs]
        if codes and codes[0] is None and live is not None and not live.is_alive():
            codes[0] = jobs[0].interrupt()
        tail = jobs[0].log_tail() if jobs else ""
        for job in jobs:
            job.interrupt()
    network.remove(tag)
    result = describe(run, act, problem, until) | {"background": run.background}
    if live is not None:
        result |= report(run, live.events(), jobs, codes, until)
    if problem or not result.get("valid", False):
        result["log_tail"] = tail
    shutil.rmtree(folder, ignore_errors=True)
    return result


def start_jobs(
    live: Live, jobs: list[Job], act: str | None, collector: RunCollector | None = None
) -> None:
    """Start the job (and a healthy bystander, if wanted); wait until it trains."""
    run = live.run
    address = collector.address if collector else ""
    command = launch_command(
        run, live.tag, live.events_path, live.path, healthy=False, collector=address
    )
    jobs.append(Job(command, act, live.tag, live.folder, run.scenario.stdin))
    if run.scenario.bystander:
        beside = live.folder / "bystander"
        beside.mkdir()
        other = launch_command(
            run, live.tag, beside / "events.jsonl", "", healthy=True, collector=address
        )
        jobs.append(Job(other, act, live.tag, beside, ""))
    if collector:
        collector.start()
    present = run.world - run.scenario.absent
    name = "start" if run.scenario.absent or run.scenario.inject == "slow-start" else "ready"
    begun = live.wait_for(
        lambda: host_faults.count(live, name) >= present, START_LIMIT_S, f"{present} x {name!r}"
    )
    if not begun:
        raise RunFailed("the job ended before it trained")
    if run.scenario.arm:
        host_faults.ARM[run.scenario.arm](live)


def inject(live: Live) -> None:
    """Wait for the step of the fault and do it, or wait until the workload has done it."""
    run = live.run
    if run.scenario.absent:
        # the launcher has written it down, when it had started the others
        return
    limit_s = 60 + 8 * (run.fault_step + 2) * run.step_s
    if run.scenario.host and not run.scenario.inject:
        live.wait_for(lambda: reached(live.events(), run), limit_s, f"step {run.fault_step}")
        live.sleep(run.draw("offset") * run.step_s)
        host_faults.BEGIN[run.scenario.host](live)
        return
    live.wait_for(
        lambda: first(live.events(), "fault", "phase_begin") is not None, limit_s, "the fault"
    )
    if run.scenario.host:
        host_faults.BEGIN[run.scenario.host](live)


def reached(events: list[Event], run: RunSpec) -> bool:
    """Whether every rank completed the step before the fault."""
    done = {e["rank"] for e in events if e["event"] == "step" and e["step"] >= run.fault_step - 1}
    return len(done) == run.world


def watch(live: Live, job: Job, act: str | None) -> None:
    """Watch until the job ended, the phase is over and calm, or a verdict had its time."""
    run = live.run
    if not run.scenario.is_fault:
        ends = run.world if run.scenario.inject else 1
        live.wait_for(
            lambda: host_faults.count(live, "phase_end") >= ends,
            run.phase_limit_s,
            f"{ends} x 'phase_end'",
        )
        live.sleep(run.watch_s)
        return
    end = time.monotonic() + run.watch_s
    while time.monotonic() < end and live.is_alive() and not settled(live, job, act):
        live.sleep(0.2)
    time.sleep(GRACE_S)


def settled(live: Live, job: Job, act: str | None) -> bool:
    """Whether the right verdict is there and nothing more is to come (no shutdown is due)."""
    run = live.run
    if act == "shutdown" and run.scenario.may_shut_down:
        return False
    return any(
        line["verdict"] in run.scenario.verdicts
        and rank_is_right(run, line, live.pid(run.culprit))
        and line.get("cause") in run.scenario.causes
        and time.time() > line["time"] + 8
        for line in fault_verdicts(job.lines)
    )


def describe(run: RunSpec, act: str | None, problem: str | None, until: float) -> dict[str, Any]:
    """What a result says about the run itself."""
    return {
        "name": run.name,
        "scenario": run.scenario.id,
        "number": run.scenario.number,
        "framework": run.framework,
        "step_s": run.step_s,
        "world": run.world,
        "held_out": run.scenario.held_out,
        "is_fault": run.scenario.is_fault,
        "culprit_rank": run.culprit if run.scenario.is_fault else None,
        "act": act,
        "problem": problem,
        "until": round(until, 3),
        "load": round(os.getloadavg()[0], 2),
        "valid": False,
    }


def report(
    run: RunSpec, events: list[Event], jobs: list[Job], codes: list[int | None], until: float
) -> dict[str, Any]:
    """Truth, judgement and the detector's own lines."""
    watched = [event for event in events if event["unix"] <= until]
    continues = Effect.SLOWED in run.scenario.effects
    truth = read_truth(watched, run.culprit, until, continues=continues)
    reaction = effect(truth, run.step_s, until)
    lines = jobs[0].lines if jobs else []
    code = codes[0] if codes else None
    judgement = judge(run, truth, lines, code, until)
    bystander = [line for job in jobs[1:] for line in fault_verdicts(job.lines)]
    # only a job that is not shut down shows how it reacts by itself
    shown = reaction in run.scenario.effects or judgement.shut_down
    return {
        "valid": truth.fault_at is not None and shown,
        "effect": reaction.name,
        "truth": dataclasses.asdict(truth),
        "exit_code": code,
        "judgement": with_bystander(judgement, bystander, codes[1:]),
        "lines": [slim(line) for line in lines if line.get("event") != "fact"][-60:],
        "bystander_verdicts": bystander,
        "noise": (jobs[0].noise if jobs else [])[:5],
    }


def with_bystander(
    judgement: Judgement, verdicts: list[dict[str, Any]], codes: list[int | None]
) -> dict[str, Any]:
    """The judgement, with false reports about, and actions against, a healthy bystander job."""
    return dataclasses.asdict(judgement) | {
        "false_verdicts": judgement.false_verdicts + len(verdicts),
        "false_shut_down": judgement.false_shut_down or any(code is not None for code in codes),
    }


def slim(line: dict[str, Any]) -> dict[str, Any]:
    """A detector line without what is the same in all of them."""
    return {key: value for key, value in line.items() if key not in ("schema", "job")}
