"""Checks whose process hangs in the kernel and was left behind: what counts for them until it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kcover_ebpf.agent.health_memory import MOST_LINES, Seen
from kcover_ebpf.api import rfc3339
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import process_tree
from kcover_ebpf.ids import Pid


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """One such process, and the results of the rounds in which its check is not run."""

    pid: Pid
    start_ticks: int
    check: Seen
    devices: tuple[Seen, ...] = ()
    """Those that the check failed."""

    def is_there(self) -> bool:
        """False once it has ended, also if nothing has reaped it."""
        # By its threads: of a process that was killed the first ends at once, and another may stay in D.
        return process_tree.is_same_alive(self.pid, self.start_ticks)


def of_answer(
    answer: Mapping[str, Any], devices: Iterable[Seen], now_s: float
) -> LeftBehind | None:
    """By a check's part of the answer of a round, and all devices of that round; None if nothing was left behind."""
    pid: int | None = answer.get("left_behind")
    stat = process_tree.read_stat(pid) if pid is not None else None
    if pid is None or stat is None or not stat.alive:
        return None
    # The time itself, not for how long: a text that changes is another condition and another Event.
    since = f"{rfc3339.to_text(now_s)[:16]}Z"
    text = f"not run again: process {pid} of an earlier round hangs in it since {since}"
    failing = frozenset(answer.get("failing", ()))
    return LeftBehind(
        Pid(pid),
        stat.start_ticks,
        _meanwhile(seen_of(answer), text),
        tuple(_meanwhile(each, text) for each in devices if each.name in failing),
    )


def _meanwhile(seen: Seen, text: str) -> Seen:
    """A failure lasts: what hangs is no sign that it is over. Anything else may have changed since."""
    if seen.result is Result.FAIL:
        return replace(seen, evidence=(*seen.evidence[: MOST_LINES - 1], text))
    return replace(seen, result=Result.UNKNOWN, evidence=(text,), advice="")


def joined(found: Sequence[Seen], meanwhile: Iterable[Seen]) -> list[Seen]:
    """What a round found, and beside it what counts meanwhile: a failure, unless the round saw another one itself."""
    by_name = {each.name: each for each in found}
    for each in meanwhile:
        now = by_name.get(each.name)
        if now is None or (each.result is Result.FAIL and now.result is not Result.FAIL):
            by_name[each.name] = each
    return list(by_name.values())


def seen_of(raw: Mapping[str, Any]) -> Seen:
    """A check or a device of the answer of a round."""
    name = raw["name"] if "name" in raw else raw["device"]
    evidence: Sequence[str] = raw["evidence"]
    return Seen(name, Result(raw["result"]), evidence, raw["advice"], raw.get("kind"))
