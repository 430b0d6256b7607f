"""The restart of a whole gang, step by step. Pure: what is seen goes in, a status and calls come out.

in place   Stop -> Kill -> Progress               (Stop -> Resume -> replace, where a node does not answer)
a crash    Settle -> Progress                     (-> Stop, where only some pods came back)
replace    Suspend -> Terminate -> Gone -> [Pause] -> Release -> Return -> Progress
without a switch to suspend by: Delete -> Gone -> Return -> Progress
Gone -> Stuck where a process cannot be killed; a way that did not help leads to the next one
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from kcover_ebpf.cluster import inplace, replacing
from kcover_ebpf.cluster.incident import Lost, Phase, Status
from kcover_ebpf.cluster.kinds import must_train
from kcover_ebpf.cluster.steps import Move, Turn, escalate, fail
from kcover_ebpf.incidents.verdict import suffices

_NO_AGENT_S = 60.0
"""Pods that stayed ready for so long count as recovered where no agent can see progress."""
_STEPS: Mapping[str, Callable[[Turn], Move]] = {
    "Stop": inplace.stop,
    "Resume": inplace.resume,
    "Kill": inplace.kill,
    "Settle": inplace.settle,
    "Suspend": replacing.suspend,
    "Terminate": replacing.terminate,
    "Delete": replacing.delete,
    "Gone": replacing.gone,
    "Stuck": replacing.stuck,
    "Pause": replacing.pause,
    "Release": replacing.release,
    "Return": replacing.back,
    "Abandon": replacing.abandon,
    "FinalStop": replacing.final_stop,
}
HOLDS = frozenset({"Suspend", "Release", "Abandon", "FinalStop"})
"""Steps that change the switch of the job: they must see it as it is now."""
_DOWN = frozenset({"Kill", "Pause", "Release", "Return"})
"""Steps that begin when nothing of the old ranks is left (or, in place, is about to be)."""


def advance(turn: Turn) -> Move:
    """The next move of an incident in phase ShuttingDown or Recovering."""
    move = _advance(turn)
    if move.status is None or move.status.phase is turn.status.phase is Phase.RECOVERING:
        return move
    return dataclasses.replace(move, status=_account(move.status, turn.world.now_s))


def _account(status: Status, now_s: float) -> Status:
    """The status with the seconds lost so far, by phase."""
    lost = status.lost or Lost()
    began_s, back_s = status.at(Phase.SHUTTING_DOWN), status.at(Phase.RECOVERING)
    step = status.action.step if status.action is not None else ""
    if lost.shut_down_s is None and began_s is not None and step in _DOWN | {"Progress"}:
        lost = dataclasses.replace(lost, shut_down_s=now_s - began_s)
    if lost.reschedule_s is None and began_s is not None and back_s is not None:
        lost = dataclasses.replace(lost, reschedule_s=back_s - began_s - (lost.shut_down_s or 0.0))
    if status.phase is Phase.RECOVERED and back_s is not None:
        lost = dataclasses.replace(lost, first_progress_s=now_s - back_s)
    return dataclasses.replace(status, lost=lost)


def _advance(turn: Turn) -> Move:
    if turn.status.phase is Phase.RECOVERING:
        return _progress(turn)
    step = _STEPS.get(turn.action.step)
    if step is None:
        return Move(fail(turn, f"unknown step {turn.action.step!r}, left by another version"))
    return step(turn)


def _progress(turn: Turn) -> Move:
    world, returned_s = turn.world, turn.number("returned")
    if world.top is None:
        return Move(fail(turn, "the job is gone"))
    if world.top.ended:
        if world.top.ended == "Failed":
            return Move(fail(turn, "the job failed after the restart"))
        return Move(_recovered(turn, f"the job is {world.top.ended}"))
    merged = world.merged
    if merged is not None and merged.verdict.kind.is_fault and not merged.depends:
        certain = suffices(each.kind for each in merged.evidence)
        if certain and merged.verdict.since_s >= returned_s:
            cause = f"{merged.verdict.kind.value} {merged.verdict.cause.value}"
            return Move(escalate(turn, f"{cause} again before any progress"))
    nodes = {each.pod.node for each in world.live if each.pod.node and must_train(each.pod)}
    told_by = {
        each.report.node: each.report.trained and not each.report.suspicious
        for each in world.reports
        if each.arrived_s > returned_s and each.report.node in nodes
    }
    ready = bool(world.live) and all(each.pod.ready for each in world.live)
    seen = nodes & world.agents
    if seen and seen <= set(told_by) and all(told_by.values()):
        return Move(_recovered(turn, "the ranks make progress"))
    if ready and not seen and turn.elapsed_s >= _NO_AGENT_S:
        return Move(_recovered(turn, "all pods run; no agent can see their progress"))
    return Move(wake_s=5.0)


def _recovered(turn: Turn, text: str) -> Status:
    return turn.go("Done", text, Phase.RECOVERED)
