"""The results of `tools/faultbench/trace-after` as Markdown: `python -m tools.faultbench.after_report FOLDER [DATA]`.

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
    accused = sum(each["found"] for each in results)
    lines = ["", f"{len(results)} traces of healthy jobs, {accused} with a fault verdict:", ""]
    for each in results:
        named = each["named_rank"]
        who = "" if named is None else f", rank {named}"
        lines.append(f"- {each['name']}: {each['verdict']} {each['cause']}{who}")
    return lines


def share(results: list[Result], key: str) -> str:
    """Such as "38 of 40 (95%)"."""
    right = sum(each[key] for each in results)
    return f"{right} of {len(results)} ({100 * right / len(results):.0f}%)"


def rows(results: list[Result], key: str) -> list[str]:
    """One line per value of a field."""
    groups = defaultdict(list)
    for each in results:
        groups[each[key]].append(each)
    return [
        f"| {name} | {share(group, 'rank_right')} | {share(group, 'found')} "
        f"| {share(group, 'cause_right')} |"
        for name, group in sorted(groups.items())
    ]


def text(results: list[Result]) -> list[str]:
    """All tables; the runs that went wrong one by one."""
    hung = [each for each in results if each["hung"]]
    healthy = [each for each in results if each.get("healthy") and "found" in each]
    if not hung:
        return ["no hung job", *of_healthy(healthy)]
    head = ["| rank right | fault verdict | cause right |", "|---|---|---|"]
    counts = [share(hung, key) for key in ("rank_right", "found", "cause_right")]
    took = [each["took_s"] for each in hung]
    loads = [each["load"] for each in hung]
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
    for each in hung:
        if not each["rank_right"]:
            reported = f"{each['verdict']} {each['cause']}, rank {each['named_rank']}"
            lines.append(f"- {each['name']}: {reported}; truth: rank {each['culprit_rank']}")
    return lines + of_healthy(healthy)


def keep(results: list[Result], data: Path) -> None:
    """Write the results, without what is long or of no use later."""
    kept = ({key: each[key] for key in each if key not in _NOT_KEPT} for each in results)
    data.write_text("".join(json.dumps(each) + "\n" for each in kept))


if __name__ == "__main__":
    found = read(Path(sys.argv[1]))
    for path in sys.argv[2:]:
        keep(found, Path(path))
    print("\n".join(text(found)))
