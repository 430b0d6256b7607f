"""`kcover-ebpf inspect`: checks whether this node is fit for training."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kcover_ebpf.cli.options import log_rules_option, output_option, peers_option
from kcover_ebpf.errors import CannotObserve, UsageError

if TYPE_CHECKING:
    from kcover_ebpf.facts.health import Result
    from kcover_ebpf.inspection.result import CheckResult

_EXAMPLES = """
\b
Examples:
  kcover-ebpf inspect
  kcover-ebpf inspect --checks nvml,pcie,rdma -o json
  kcover-ebpf inspect --peer node-2:10250 --plugins /etc/kcover/plugins

\b
Exit codes:
  0 no check failed; 1 a check failed; 2 wrong usage; 3 nothing could be observed
"""


@click.command(epilog=_EXAMPLES)
@click.option("--checks", metavar="A,B", help="Run only these checks; default: all light ones.")
@output_option()
@click.option(
    "--plugins",
    envvar="KCOVER_PLUGINS",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of executables to run as checks: exit code 0 passes, 1 fails; the first line is the evidence.",
)
@peers_option("--peer", "A node to connect to; may be repeated.")
@click.option(
    "--write-to",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Measure the storage below this folder with a temporary file of 1 MiB.",
)
@log_rules_option
def inspect(
    *,
    checks: str | None,
    output: str,
    plugins: Path | None,
    peers: tuple[str, ...],
    write_to: Path | None,
    log_rules: Path | None,
) -> int:
    """Check GPUs, links, storage and the host; a check that hangs is ended at its deadline.

    The overall result is the worst one: fail, warn, unknown, pass. Heavy checks run only when named
    in --checks, and never while a GPU is busy. Changes nothing but the temporary file of --write-to.
    """
    from kcover_ebpf.facts.health import Result, worst
    from kcover_ebpf.inspection import plugins as plugin_checks
    from kcover_ebpf.inspection import registry, runner
    from kcover_ebpf.inspection.options import InspectionOptions, peer_of

    options = InspectionOptions(
        peers=tuple(map(peer_of, peers)),
        write_to=() if write_to is None else (write_to,),
        log_rules=log_rules,
    )
    chosen = registry.chosen(
        _names(checks),
        () if plugins is None else plugin_checks.load(plugins),
        has_peers=bool(peers),
    )
    try:
        found = runner.inspect(chosen, options)
    except OSError as error:
        raise CannotObserve(f"cannot start a check: {error.strerror}") from error
    result = worst(check.part.result for check in found)
    if output == "json":
        click.echo(_as_json(found, result))
    else:
        click.echo("\n".join(_as_text(found, result)))
    if all(check.part.result is Result.UNKNOWN for check in found):
        raise CannotObserve("no check could observe anything; the advice of each says why")
    return int(result is Result.FAIL)


def _names(checks: str | None) -> list[str]:
    if checks is None:
        return []
    names = [name.strip() for name in checks.split(",") if name.strip()]
    if not names:
        raise UsageError("--checks needs the name of a check")
    return names


def _node() -> str:
    return os.environ.get("NODE_NAME") or platform.node()


def _as_json(found: Sequence[CheckResult], result: Result) -> str:
    from kcover_ebpf.output.formatting import SCHEMA

    answer = {
        "schema": SCHEMA,
        "node": _node(),
        "time": round(time.time(), 6),
        "result": result.value,
        "checks": [
            {
                "name": check.name,
                "result": part.result.value,
                "cost": check.cost.value,
                "seconds": check.seconds,
                "evidence": list(part.evidence),
                "advice": part.advice,
            }
            for check, part in ((check, check.part) for check in found)
        ],
    }
    return json.dumps(answer, ensure_ascii=True)


def _as_text(found: Sequence[CheckResult], result: Result) -> list[str]:
    from kcover_ebpf.output.formatting import aligned, printable

    rows = [("CHECK", "RESULT", "SECONDS", "EVIDENCE")]
    parts = [(check, check.part) for check in found]
    for check, part in parts:
        first, *others = part.evidence
        rows.append((check.name, part.result.value, f"{check.seconds:.1f}", first))
        rows += [("", "", "", other) for other in others]
    advice = [f"{check.name}: {printable(part.advice)}" for check, part in parts if part.advice]
    lines = [*aligned(rows), ""]
    if advice:
        lines += ["what to do:", *(f"  {line}" for line in advice), ""]
    return [*lines, f"{_node()}: {result.value}"]
