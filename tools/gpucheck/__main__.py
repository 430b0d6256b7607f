"""The command line: `tools/gpu-check [--self-test] [--out FOLDER]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.gpucheck import report, runner, self_test
from tools.gpucheck.plan import ROOT, NotPossible, Plan

_EPILOG = "Exit codes: 0 written, 1 the self-test failed, 2 wrong usage, 3 no GPU here. See docs/gpu-check.md."


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("gpu-check", description=__doc__, epilog=_EPILOG)
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "build/gpu-check",
        metavar="FOLDER",
        help="where the page and its data go (%(default)s)",
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="run every part against stubs for the libraries",
    )
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    folder: Path = given.out.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"gpu-check: {folder}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        if given.self_test:
            return self_test.main(folder)
        plan = Plan(folder, Path("/dev"), quick=False)
        machine = runner.probe(plan)
    except NotPossible as problem:
        print(f"gpu-check: no NVIDIA GPU to check here: {problem}", file=sys.stderr)
        return 3
    parts = runner.run_parts(plan, runner.to_stderr)
    report.write(folder, machine, parts)
    print(folder / "gpu.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
