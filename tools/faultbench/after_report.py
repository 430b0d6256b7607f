"""The results of `tools/faultbench/trace-after` as Markdown: `python -m tools.faultbench.after_report FOLDER`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def hung(folder: Path) -> list[dict[str, Any]]:
    """The runs in which there was a hang to explain."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [each for each in results if each["hung"]]


def healthy(folder: Path) -> list[dict[str, Any]]:
    """The looks at jobs that were well."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [each for each in results if each.get("healthy") and "found" in each]


def of_healthy(results: list[dict[str, Any]]) -> list[str]:
    """How often a healthy job was accused, and what was said of each."""
    if not results:
        return []
    accused = sum(each["found"] for each in results)
    lines = ["", f"{len(results)} looks at healthy jobs, {accused} with a fault verdict:", ""]
    for each in results:
        named = each["named_rank"]
        who = "" if named is None else f", waited for: rank {named}"
        lines.append(f"- {each['name']}: {each['verdict']} {each['cause']}{who}")
    return lines


def share(results: list[dict[str, Any]], key: str) -> str:
    """Such as "38 of 40 (95%)"."""
    right = sum(each[key] for each in results)
    return f"{right} of {len(results)} ({100 * right / len(results):.0f}%)"


def rows(results: list[dict[str, Any]], key: str) -> list[str]:
    """One line per value of a field."""
    groups = defaultdict(list)
    for each in results:
        groups[each[key]].append(each)
    return [
        f"| {name} | {len(group)} | {share(group, 'found')} | {share(group, 'rank_right')} "
        f"| {share(group, 'cause_right')} |"
        for name, group in sorted(groups.items())
    ]


def text(folder: Path) -> list[str]:
    """All tables; the runs that went wrong one by one."""
    results = hung(folder)
    if not results:
        return ["no hung job", *of_healthy(healthy(folder))]
    head = ["| runs | fault found | rank right | cause right |", "|---|---|---|---|"]
    counts = [share(results, key) for key in ("found", "rank_right", "cause_right")]
    lines = [*head, f"| {len(results)} | {' | '.join(counts)} |", ""]
    for title, key in (("framework", "framework"), ("fault", "scenario")):
        lines += [f"| {title} {head[0]}", f"|---{head[1]}", *rows(results, key), ""]
    for each in results:
        if not each["rank_right"]:
            told = f"{each['verdict']} {each['cause']}, rank {each['named_rank']}"
            lines.append(f"- {each['name']}: {told}; truth: rank {each['culprit_rank']}")
    return lines + of_healthy(healthy(folder))


if __name__ == "__main__":
    print("\n".join(text(Path(sys.argv[1]))))
