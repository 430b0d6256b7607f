"""Traces the nodes of one job in parallel: their table as soon as each has one, then one verdict."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

from kcover_ebpf.api.pods import Pod
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.gang.gang_input import GangVerdict
from kcover_ebpf.output import formatting
from kcover_ebpf.trace import records
from kcover_ebpf.trace.gang import joined_trace, watched
from kcover_ebpf.trace.gang.joined_trace import NO_SNAPSHOT, NodeAnswer
from kcover_ebpf.trace.records import TRACE, Line, exit_code_of


@dataclass(frozen=True, slots=True)
class TracedNode:
    """The pods of one node, and the agent there."""

    node: str
    agent_namespace: str
    agent: str
    pods: tuple[Pod, ...]
    containers: tuple[str, ...]
    """Ids of the containers to trace."""
    name: str


@dataclass(slots=True)
class _Traces:
    """Records that arrived from each node so far."""

    places: Sequence[TracedNode]
    lines: list[list[Line]] = field(default_factory=list)
    ended_s: dict[int, float] = field(default_factory=dict)
    """When the last line of a node arrived (CLOCK_MONOTONIC)."""
    errors: dict[int, str] = field(default_factory=dict)
    """Why a node has no verdict."""


def traced_together(
    places: Sequence[TracedNode],
    trace: Callable[[TracedNode], Iterator[str]],
    known_gang_verdict: GangVerdict | None = None,
) -> Iterator[str]:
    """The records of all nodes as those of one run; raises `CannotObserve` if no node could be traced.

    `known_gang_verdict`: the verdict of the agents that watch the job; None: the new traces are judged.
    """
    news: queue.SimpleQueue[tuple[int, str | BaseException | None]] = queue.SimpleQueue()

    def follow(index: int) -> None:
        try:
            for text in trace(places[index]):
                news.put((index, text))
            news.put((index, None))
        except Exception as error:  # noqa: BLE001 - the other nodes are shown all the same
            news.put((index, error))

    for index in range(len(places)):
        threading.Thread(target=follow, args=(index,), daemon=True).start()
    traces = _Traces(places, [[] for _ in places])
    running, reported = len(places), False
    while running:
        index, text = news.get()
        if isinstance(text, str):
            traces.lines[index].append(records.parse(text))
            traces.ended_s[index] = time.monotonic()
        else:
            running -= 1
            if text is not None:
                traces.errors[index] = str(text)
        if not reported and _has_tables(traces, running):
            reported = True
            yield _first(traces)
            yield _line(traces, "threads", {"threads": joined_trace.threads(traces.lines)})
    if not reported:
        raise CannotObserve(f"no node could be traced: {'; '.join(_unseen(traces))}")
    yield from _conclusion(
        traces, known_gang_verdict or _judged(traces), watched_before=known_gang_verdict is not None
    )


def _has_tables(traces: _Traces, running: int) -> bool:
    tables = sum(any(line.event == "threads" for line in other_line) for other_line in traces.lines)
    return (tables > 0 and tables + len(traces.errors) >= len(traces.lines)) or (
        tables > 0 and not running
    )


def _first(traces: _Traces) -> str:
    places = traces.places
    pods = [pod.name for place in places for pod in place.pods]
    return _line(
        traces, "trace", {"job": places[0].name, "host": f"{len(places)} nodes", "pods": pods}
    )


def _judged(traces: _Traces) -> GangVerdict:
    answers = _answers(traces)
    if not answers:
        raise CannotObserve(f"no node could be traced: {'; '.join(_unseen(traces))}")
    pods = [pod for place in traces.places for pod in place.pods]
    return joined_trace.judged(traces.places[0].name, answers, pods, time.time())


def _conclusion(
    traces: _Traces, gang_verdict: GangVerdict, *, watched_before: bool
) -> Iterator[str]:
    stacks, blind = joined_trace.stacks(traces.lines)
    yield _line(traces, "threads", {"threads": joined_trace.threads(traces.lines)})
    yield _line(traces, "stacks", {"stacks": stacks, "unobserved": blind})
    yield _line(traces, "verdict", _fields(traces, gang_verdict, watched_before=watched_before))
    code = exit_code_of(gang_verdict.verdict.kind.value)
    yield _line(traces, "end", {"exit_code": code})


def _answers(traces: _Traces) -> list[NodeAnswer]:
    answers = []
    for index, lines in enumerate(traces.lines):
        verdict = next((line for line in reversed(lines) if line.conclusion is not None), None)
        report = None if verdict is None else joined_trace.report_in(verdict.fields)
        if report is not None:
            age_s = time.monotonic() - traces.ended_s[index]
            answers.append(NodeAnswer(traces.places[index].node, report, age_s))
        else:
            traces.errors.setdefault(index, NO_SNAPSHOT)
    return answers


def _fields(traces: _Traces, gang_verdict: GangVerdict, *, watched_before: bool) -> dict[str, Any]:
    # a node is named once, with the reason
    silent = {f"node {traces.places[index].node} did not report" for index in traces.errors}
    traced = {
        "edges": [TRACE.encode(edge) for edge in joined_trace.edges(traces.lines)],
        "unobserved": _unseen(traces),
    }
    fields = watched.conclusion(gang_verdict, traced, watched=watched_before)
    said = dict.fromkeys((*fields["unobserved"], *joined_trace.stacks(traces.lines)[1]))
    fields["unobserved"] = [item for item in said if item not in silent]
    return fields


def _unseen(traces: _Traces) -> list[str]:
    return [f"node {traces.places[index].node} ({why})" for index, why in traces.errors.items()]


def _line(traces: _Traces, event: str, fields: dict[str, Any]) -> str:
    time_s = max((line.time_s for other_line in traces.lines for line in other_line), default=0.0)
    return formatting.event_line(event, time_s, fields)
