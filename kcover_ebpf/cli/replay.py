"""`kcover-ebpf replay FILE`: judge a recorded job again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output.formatting import printable
from kcover_ebpf.run.out import Out
from kcover_ebpf.run.replay import Replay
from kcover_ebpf.run.sinks import Announcer, JsonSink, TextSink
from kcover_ebpf.tapes.reader import TapeReader

_EXAMPLES = """
\b
Examples:
  kcover-ebpf replay job.tape.gz
  kcover-ebpf replay job.tape -o json

\b
Exit codes:
  0 the tape was read to its end; 2 wrong usage, or not a complete tape
"""
_STDOUT = 1


@click.command(epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@output_option("json: JSON lines, as `run` writes them.")
def replay(file: Path, output: str) -> None:
    """Judge the job of a tape that `run --record FILE` wrote, and print what `run` would print.

    Needs no privileges and does not run in real time. No action is taken on a verdict.
    """
    try:
        stream = file.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the tape {file}: {reason}") from error
    with stream:
        tape = TapeReader(stream, str(file))
        played = Replay(tape)
        out = Out(_STDOUT)
        sink = JsonSink if output == "json" else TextSink
        played.play(Announcer([sink(out, played.now_s)], wants_waits=False))
    if tape.skipped:
        kinds = printable(
            ", ".join(f"{count} {kind}" for kind, count in sorted(tape.skipped.items()))
        )
        print(f"kcover-ebpf replay: skipped, as a newer version wrote it: {kinds}", file=sys.stderr)
