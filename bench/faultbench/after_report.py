"""The results of `bench/faultbench/trace-after` as Markdown: `python -m bench.faultbench.after_report FOLDER [DATA]`.

DATA is a file that gets all results, one JSON line each.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

Result = dict[str, Any]
_NOT_KEPT = ("waits", "said", "problem")


def read(folder: Path) -> list[Result]:
    """All results, by name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def of_healthy(results: list[Result]) -> list[str]:
    """How often a healthy job was accused, and what was said of each; no lines if none was traced."""
    if not results:
        return []
    accused = sum(entry["found"] for entry in results)
    lines = ["", f"{len(results)} traces of healthy jobs, {accused} with a fault verdict:", ""]
    for result in results:
        named = result["named_rank"]
        who = "" if named is None else f", rank {named}"
        lines.append(f"- {result['name']}: {result['verdict']} {result['cause']}{who}")
    return lines


def share(results: list[Result], key: str) -> str:
    """Such as "38 of 40 (95%)"."""
    right = sum(result[key] for result in results)
    return f"{right} of {len(results)} ({100 * right / len(results):.0f}%)"


def rows(results: list[Result], key: str) -> list[str]:
    """One line per value of a field."""
    groups = defaultdict(list)
    for result in results:
        groups[result[key]].append(result)
    return [
        f"| {name} | {share(group, 'rank_right')} | {share(group, 'found')} "
        f"| {share(group, 'cause_right')} |"
        for name, group in sorted(groups.items())
    ]


def text(results: list[Result]) -> list[str]:
    """All tables; the runs that went wrong one by one."""
    hung = [result for result in results if result["hung"]]
    healthy = [result for result in results if result.get("healthy") and "found" in result]
    if not hung:
        return ["no hung job", *of_healthy(healthy)]
    head = ["| rank right | fault verdict | cause right |", "|---|---|---|"]
    counts = [share(hung, key) for key in ("rank_right", "found", "cause_right")]
    took = [entry["took_s"] for entry in hung]
    loads = [entry["load"] for entry in hung]
    jobs = f"{len(hung)} hung jobs, at a load of {min(loads):.0f} to {max(loads):.0f}"
    lines = [
        f"{jobs}; a trace took {statistics.median(took):.1f} s at the median, {max(took):.1f} s at most.",
        "",
        *head,
        f"| {' | '.join(counts)} |",
        "",
    ]
    for title, key in (("framework", "framework"), ("step s", "step_s"), ("fault", "scenario")):
        lines += [f"| {title} {head[0]}", f"|---{head[1]}", *rows(hung, key), ""]
    for entry in hung:
        if not entry["rank_right"]:
            reported = f"{entry['verdict']} {entry['cause']}, rank {entry['named_rank']}"
            lines.append(f"- {entry['name']}: {reported}; truth: rank {entry['culprit_rank']}")
    return lines + of_healthy(healthy)


def keep(results: list[Result], data: Path) -> None:
    """Write the results, without what is long or of no use later."""
    kept = ({key: result[key] for key in result if key not in _NOT_KEPT} for result in results)
    data.write_text("".join(json.dumps(entry) + "\n" for entry in kept))


if __name__ == "__main__":
    found = read(Path(sys.argv[1]))
    for path in sys.argv[2:]:
        keep(found, Path(path))
    print("\n".join(text(found)))
