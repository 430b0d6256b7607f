"""What each attack was measured to do to us: lines of a file, and the page made of them.

KCOVER_ATTACK_RECORD=.bench/data/attack.jsonl make test-attack
python -m tests.attack.record .bench/data/attack.jsonl > docs/bench/attack.md
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.attacks.meters import MOST_BYTES, Lag, Use
from testbed.attacks.stage import Recovery

FILE = "KCOVER_ATTACK_RECORD"
"""The variable that names the file to add to; nothing is written without it."""
RESTARTED_S = 10.0
"""Within which the ranks of the victim are to be started again during an attack: 5 s of it is the patience with a
stopped rank (`Policy.stopped_s`)."""
PATIENCE_S = 60.0
"""Within which they are to train again."""
LAG_S = 0.25
"""Within which 99% of an agent's passes are to be over, counted from when they were due."""
_HEAD = """\
# Attacks

Written by `python -m tests.attack.record` from the last run of each test of `make test-attack`:
the installed chart on the test bed's two nodes, real kubelets, a tenant or a stolen agent's token that attacks, and a
victim of two ranks that trains beside it. While the attack lasts, a rank of the victim is stopped: `restarted` is from
then until all of its ranks were started again, `recovered` until they trained and its incident was `Recovered`: between
the two the ranks load PyTorch, on two cores that others use. Memory is the most that one process used (VmHWM, set back
before each attack);
`agent's pod` is the sum of that over its processes, readers of what tenants wrote included, and more than it used at
once. `Lag` is the time within which 99% of the agents' passes were over, counted from when they were due, as the end of
a bucket of `kcover_loop_lag_seconds`. `-`: from a run before that was measured. The restarts are those of all agents
and controllers.

| attack | restarted | recovered | agent | agent's pod | controller | lag | restarts | load | commit |
|---|---|---|---|---|---|---|---|---|---|
"""


def write(name: str, recovery: Recovery, uses: Sequence[Use], lag: Lag) -> None:
    """Add a line, where a file for it is named."""
    if not (file := os.environ.get(FILE)):
        return
    line = {
        "attack": name,
        "running_s": round(recovery.running_s, 1),
        "recovered_s": round(recovery.took_s, 1),
        "peak_bytes": {
            part: [use.peak_bytes for use in uses if use.component == part] for part in MOST_BYTES
        },
        "pod_bytes": max(use.all_bytes for use in uses if use.component == "agent"),
        "lag_p99_s": lag.p99_s,
        "passes": lag.passes,
        "restarts": sum(use.restarts for use in uses),
        "load": round(os.getloadavg()[0], 1),
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with Path(file).open("a") as out:
        out.write(json.dumps(line) + "\n")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def page_of(lines: Iterable[Mapping[str, Any]]) -> str:
    """The page; of several lines of one attack the last one counts. Raises ValueError where there is none."""
    last = {str(line["attack"]): line for line in lines}
    if not last:
        raise ValueError("no attack was recorded")
    rows = [_row(name, last[name]) for name in sorted(last, key=_order)]
    return _HEAD + "\n".join([*rows, "", *_summary(list(last.values()))]) + "\n"


def _order(name: str) -> tuple[str, int, str]:
    kind, number = name.removeprefix("test_")[:1], name.removeprefix("test_")[1:].partition("_")[0]
    return kind, (int(number) if number.isdecimal() else 0), name


def _row(name: str, line: Mapping[str, Any]) -> str:
    agent, controller = (f"{_most(line, part) / 1e6:.0f} MB" for part in ("agent", "controller"))
    words = name.removeprefix("test_").replace("_", " ")
    pod = f"{line['pod_bytes'] / 1e6:.0f} MB" if "pod_bytes" in line else "-"
    lag = f"{line['lag_p99_s']} s" if "lag_p99_s" in line else "-"
    restarted = f"{line['running_s']} s" if "running_s" in line else "-"
    return (
        f"| {words[0].upper()}{words[1:]} | {restarted} | {line['recovered_s']} s"
        f" | {agent} | {pod} | {controller} | {lag} | {line['restarts']} | {line['load']} | {line['commit']} |"
    )


def _summary(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    restarts = [float(line["running_s"]) for line in lines if "running_s" in line]
    found = [
        f"Slowest {what}: {slowest} s (goal {goal_s:.0f} s: {'kept' if slowest <= goal_s else 'missed'})."
        for what, slowest, goal_s in (
            ("restart", max(restarts, default=0.0), RESTARTED_S),
            ("recovery", max(float(line["recovered_s"]) for line in lines), PATIENCE_S),
        )
    ]
    for part, most in MOST_BYTES.items():
        peak = max(_most(line, part) for line in lines)
        kept = "kept" if peak < most else "missed"
        found.append(
            f"Most memory of one {part}: {peak / 1e6:.0f} MB (goal {most / 1e6:.0f} MB: {kept})."
        )
    lag_s = max((float(line["lag_p99_s"]) for line in lines if "lag_p99_s" in line), default=0.0)
    kept = "kept" if lag_s <= LAG_S else "missed"
    return [*found, f"Longest lag: {lag_s} s (goal {LAG_S} s: {kept})."]


def _most(line: Mapping[str, Any], part: str) -> int:
    return max(line["peak_bytes"][part], default=0)


def main(arguments: Sequence[str]) -> int:
    """Print the page."""
    (name,) = arguments
    lines = Path(name).read_text().splitlines()
    sys.stdout.write(page_of(json.loads(line) for line in lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
