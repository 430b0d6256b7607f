"""Doubts about a verdict, and the next step for the user. Pure."""

from __future__ import annotations

from kcover_ebpf.model.verdict import Cause, Certainty, EvidenceKind, Verdict, VerdictKind
from kcover_ebpf.output.formatting import culprit_text

_NEXT = {
    Cause.STOPPED: "find out what stopped {who}{event}, then resume it, as root on its host: kill -CONT {pid}",
    Cause.FROZEN: "find out what froze the control group in /proc/{pid}/cgroup, then write 0 to its cgroup.freeze",
    Cause.BLOCKED_LOCK: "read the frames of {who}: the line that takes the lock, and which thread owns it",
    Cause.BLOCKED_SLEEP: "read the Python frames of {who}: the line that sleeps is not part of a training step",
    Cause.BLOCKED_READ: "read the frames of {who}, and examine the process that should write what it reads",
    Cause.BLOCKED_UNKNOWN: "compare the frames of {who} with those of its peers",
    Cause.SPINNING: "read the frames of {who} twice: what stays is the loop (py-spy top --nonblocking --pid {pid})",
    Cause.STORAGE: "check the storage that {who} waits for: dmesg, the server, and `timeout 5 ls` on its path",
    Cause.LOADER_STUCK: "read the frames of process {end}; give the DataLoader a timeout= so that it fails by itself",
    Cause.LOADER_DIED: "check the log of {who} and dmesg for what ended the loader",
    Cause.MISSING_RANK: "find out how {who} ended: its log, its exit code, dmesg; the others wait for it",
    Cause.LINK: "check the network of {who}: ip -s link, ss -ti, the switch port, the firewall's counters",
    Cause.PEER_GONE: "check the host of the peer: is it up, is its rank alive?",
    Cause.COLLECTIVE_MISMATCH: "compare the Python frames of the ranks: {who} is in a different collective",
    Cause.WAIT_CYCLE: "compare the frames of the ranks: each waits for another one, as in crossed collectives",
    Cause.CPU_THROTTLED: "raise the CPU limit of {who}: nr_throttled in its cgroup's cpu.stat",
    Cause.MEMORY_PRESSURE: "raise the memory limit of {who}, or find what grows: memory.pressure of its cgroup",
    Cause.SLOW_RANK: "compare the host of {who} with the others: clocks, heat, other work, storage, network",
    Cause.SLOW_JOB: "compare with an hour ago what all ranks share: storage, network, clocks, input",
    Cause.DEVICE: "check the device of {who}: kcover-ebpf doctor, nvidia-smi -q, dmesg",
    Cause.PREFLIGHT: "see what is wrong with the node: kubectl kcover nodes; the job is placed elsewhere",
    Cause.OOM_KILLED: "raise the memory limit of {who}, then restart the job",
}
_ENDED = {
    Cause.STOPPED: "find out what stopped {who}{event}",
    Cause.FROZEN: "find out what froze the control group of {who}",
    Cause.SPINNING: "read the frames of {who} in the evidence of the incident: the innermost is in the loop",
}
"""Advice if the job was restarted meanwhile: nothing is left to be resumed or examined."""
_WORKING = {
    Cause.TRAINING: "nothing to do",
    Cause.DEBUGGER: "detach the debugger; until then the job waits",
    Cause.SUSPENDED: "nothing to do: the whole job was suspended; resume it when you are ready",
    Cause.WAITING_FOR_USER: "answer the prompt on the job's terminal",
}
_WORK = (Cause.COMPUTING, Cause.LOADING, Cause.CHECKPOINT)
_WATCH = "trace again in a minute; to be notified when it hangs: kcover-ebpf run --pid PID"
_JUDGE_YOURSELF = (
    "read the frames of {who} twice: is what it does part of a step, and does it advance?"
)
_DEVICE_WAIT = (
    "trace again after the longest step of this job: a rank that still waits by then is hung; "
    "NCCL_RAS (2.24 or newer) or nvidia-smi shows which device is idle"
)


def next_step(verdict: Verdict, *, was_restarted: bool = False) -> str:
    """One sentence for the user, such as which process to examine.

    `was_restarted`: the processes that the verdict is about have ended.
    """
    event = next(
        (f" ({found.text})" for found in verdict.evidence if found.kind is EvidenceKind.EVENT), ""
    )
    if was_restarted and verdict.culprit is not None and verdict.cause in _ENDED:
        return _ENDED[verdict.cause].format(who=culprit_text(verdict.culprit), event=event)
    if not verdict.kind.is_fault and verdict.kind is not VerdictKind.SLOW:
        if verdict.kind is VerdictKind.UNKNOWN and verdict.culprit is not None:
            return _JUDGE_YOURSELF.format(who=culprit_text(verdict.culprit))
        if verdict.cause is Cause.DEVICE_WAIT:
            return _DEVICE_WAIT
        if verdict.kind is VerdictKind.UNKNOWN:
            return "trace again while it is stuck; `kcover-ebpf doctor` reports what cannot be observed here"
        return _WORKING.get(verdict.cause, _WATCH)
    culprit = verdict.culprit
    if culprit is None and verdict.cause is Cause.DEVICE_WAIT:
        return _DEVICE_WAIT
    if culprit is None and verdict.cause is not Cause.WAIT_CYCLE:
        return "compare the frames of the ranks below; no single one differs"
    text = _NEXT.get(verdict.cause, "check the log of {who}, then restart the job")
    if culprit is None:
        return text.format(who="the ranks", event=event, pid="PID", tid="TID", end="PID")
    pid = culprit.pid or "PID"
    tid = culprit.tid or pid
    return text.format(who=culprit_text(culprit), event=event, pid=pid, tid=tid, end=tid)


def doubt(verdict: Verdict, *, watched: bool = False) -> list[str]:
    """Reasons why the verdict may be wrong, as sentences; empty without any.

    `watched`: it comes from agents that saw the job while it was healthy.
    """
    said = []
    if verdict.kind.is_fault and verdict.certainty in (Certainty.INFERRED, Certainty.SUSPECTED):
        said.append(
            f"it is {verdict.certainty.value}: a phase that is new to the job looks the same"
        )
    if verdict.kind.is_fault and verdict.culprit is None:
        said.append("no rank differs from the others, so no culprit is identified")
    if verdict.kind is VerdictKind.WORKING and verdict.cause is not Cause.TRAINING:
        said.append(
            "the job was observed for a few seconds only; a quiet phase that never ends looks the same"
        )
    others_wait = verdict.kind in (VerdictKind.HUNG, VerdictKind.DEADLOCK, VerdictKind.LOST_LINK)
    if others_wait and not watched:
        said.append("the job was not observed while healthy: nothing to compare with")
    if verdict.kind is VerdictKind.UNKNOWN and verdict.cause in _WORK:
        said.append(
            "long work, such as an evaluation, and endless work cannot be distinguished from outside"
        )
    elif verdict.kind is VerdictKind.UNKNOWN and verdict.cause is Cause.DEVICE_WAIT:
        said.append("a long step and a hang on the devices cannot be distinguished from outside")
    elif verdict.kind is VerdictKind.UNKNOWN:
        said.append("what was observed matches neither a known fault nor a healthy job")
    return said
