"""`kcover-ebpf report BUNDLE`: an incident as one page, or as a file for another program."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from kcover_ebpf.archive.incident_archive import Archive, merged, unpacked
from kcover_ebpf.archive.manifest import plain
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output import archives
from kcover_ebpf.output.bundles import bundles_of

_EXAMPLES = """
\b
Examples:
  kcover-ebpf report kcover-snapshots/20260102T030405.678Z-train-1-HUNG -o incident.html
  kcover-ebpf report job.tape.gz -o incident.html
  kcover-ebpf report BUNDLE -f speedscope -o stacks.json    open at speedscope.app, or offline
  kcover-ebpf report incidents/ml/llm-1f2e3d4c/*.tar.gz -o incident.html    the parts that a store has
  kcover-ebpf report BUNDLE -f timeline -o timeline.json    open at ui.perfetto.dev

\b
Exit codes:
  0 written; 2 wrong usage, or neither an archive nor a tape
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "bundles", metavar="BUNDLE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "-o",
    "--output",
    "to",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file; default: standard output.",
)
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(["html", "stacks", "collapsed", "speedscope", "timeline"]),
    default="html",
    show_default=True,
    help=(
        "html: a page without scripts that needs no network; stacks: the tree of all stacks as text; collapsed: input "
        "for flame graphs; speedscope: input for speedscope; timeline: Chrome's trace format."
    ),
)
@click.option("--transfer-from", type=click.IntRange(min=0), hidden=True, help="For an agent.")
@click.option(
    "--newest-of",
    metavar="INCIDENT",
    hidden=True,
    help="Newest bundle of this incident in a folder, for an agent.",
)
def report(
    bundles: tuple[Path, ...],
    to: Path | None,
    form: str,
    transfer_from: int | None,
    newest_of: str | None,
) -> None:
    """Explain one incident from BUNDLE: the folder or tar file of its archive, or a tape of `run --record`.

    Several BUNDLEs are parts of one incident, as a store of archives has them. Needs no privileges, no cluster and
    no network.
    """
    if transfer_from is not None:
        bundle = bundles[0]
        if newest_of is not None:
            bundle = _newest(bundle, newest_of)
        _transfer(bundle, transfer_from)
        return
    write(_FORMS[form](_together(bundles)), to)


def _together(bundles: Sequence[Path]) -> Archive:
    """One archive from all parts; raises `UsageError`, also for parts of two jobs."""
    parts = [read(bundle) for bundle in bundles]
    jobs = sorted({archive.job for archive in parts})
    if len(jobs) > 1:
        raise UsageError(
            f"these are parts of different jobs: {', '.join(jobs)}; give those of one job"
        )
    incident = next((part.incident for part in parts if part.incident is not None), None)
    return merged(parts, incident) if len(parts) > 1 else parts[0]


def _newest(folder: Path, incident: str) -> Path:
    found = bundles_of(folder, plain(incident))
    if not found:
        raise UsageError(f"no bundle of incident {incident} is in {folder}")
    return found[-1]


def _transfer(bundle: Path, offset: int) -> None:
    """Send the files to `kubectl kcover bundle`, and exit when it exits."""
    from kcover_ebpf.output.part_transfer import lines_of
    from kcover_ebpf.trace.pod_target import end_with_asker

    end_with_asker(lambda: os.kill(os.getpid(), signal.SIGTERM))
    for line in lines_of(archives.read_files(bundle), offset):
        write(f"{line}\n", None)


def read(path: Path) -> Archive:
    """The archive at a path, or made from the tape there; raises `UsageError`."""
    if not path.exists():
        raise UsageError(f"cannot read {path}: No such file or directory")
    if path.is_dir() or archives.is_tar(path):
        return unpacked(archives.read_files(path), str(path))
    from kcover_ebpf.run.tape_archive import of_tape

    return of_tape(path)


def write(text: str, to: Path | None) -> None:
    """Write to a file or to standard output; raises `UsageError`."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        if to is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        else:
            to.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {to or 'standard output'}: {error.strerror}") from error


def page_text(archive: Archive) -> str:
    """The page as HTML; raises `UsageError` without Jinja2."""
    from kcover_ebpf.postmortem.page import page_of
    from kcover_ebpf.postmortem.render import html_of

    return html_of(page_of(archive))


def _tree_text(archive: Archive) -> str:
    from kcover_ebpf.output.formatting import printable
    from kcover_ebpf.postmortem.page import tree_of_archive
    from kcover_ebpf.views.stack_tree import as_text

    lines = as_text(tree_of_archive(archive)) or [
        "fewer than two ranks have a stack in this archive"
    ]
    return "".join(f"{printable(line)}\n" for line in lines)


def _collapsed(archive: Archive) -> str:
    from kcover_ebpf.postmortem.page import tree_of_archive
    from kcover_ebpf.views.stack_tree import collapsed

    return collapsed(tree_of_archive(archive))


def _speedscope(archive: Archive) -> str:
    from kcover_ebpf.postmortem.page import tree_of_archive
    from kcover_ebpf.views.stack_tree import speedscope

    return json.dumps(speedscope(tree_of_archive(archive), archive.job)) + "\n"


def _timeline(archive: Archive) -> str:
    from kcover_ebpf.postmortem.page import chrome_trace_of

    return json.dumps(chrome_trace_of(archive)) + "\n"


_FORMS: dict[str, Callable[[Archive], str]] = {
    "html": page_text,
    "stacks": _tree_text,
    "collapsed": _collapsed,
    "speedscope": _speedscope,
    "timeline": _timeline,
}
