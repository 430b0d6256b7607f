"""Runs one part as a process: `part NAME PLAN`; leaves NAME.json in the folder of the plan."""

from __future__ import annotations

import importlib
import sys

from tools.gpucheck.plan import Notes, NotPossible, Plan


def main(name: str, text: str) -> int:
    plan = Plan.from_json(text)
    notes = Notes(plan.folder / f"{name}.json")
    notes.write("unfinished", "")
    try:
        importlib.import_module(f"tools.gpucheck.{name}").measure(plan, notes)
    except NotPossible as problem:
        notes.write("not possible here", str(problem))
        return 0
    notes.write("done", "")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
