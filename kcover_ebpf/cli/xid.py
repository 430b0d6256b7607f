"""`kcover-ebpf xid N`: explains one Xid or SXid number."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kcover_ebpf.cli.options import output_option
from kcover_ebpf.devices.catalog import Entry, judge, version_key
from kcover_ebpf.devices.catalog.files import load
from kcover_ebpf.errors import UsageError

_EXAMPLES = """
\b
Examples:
  kcover-ebpf xid 79
  kcover-ebpf xid 154 --driver 570.86.15 -o json

\b
Exit codes:
  0 explained; 2 wrong usage, or a number that is not in the catalog
"""


@click.command(name="xid", epilog=_EXAMPLES)
@click.argument("number", type=click.IntRange(min=0))
@output_option()
@click.option(
    "--driver", metavar="VERSION", help="Driver version, for numbers whose meaning changed."
)
@click.option(
    "--catalog",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file with your own entries for Xids and SXids.",
)
def xid(number: int, output: str, driver: str | None, catalog: Path | None) -> None:
    """Explain an Xid (GPU) or SXid (NVSwitch) NUMBER: whose fault it is and what to do."""
    if driver is not None and not version_key(driver):
        raise UsageError(f"--driver {driver!r} is not a version; give one like 570.86.15")
    known_catalog = load(catalog)
    entry = known_catalog.find(number, driver)
    if entry is None:
        raise UsageError(
            f"{number} is not in the catalog of Xids and SXids; check the number, or add an entry with --catalog"
        )
    others = tuple(other for other in known_catalog.variants(number) if other is not entry)
    click.echo(
        json.dumps(as_json(entry, others), ensure_ascii=False)
        if output == "json"
        else as_text(entry, others)
    )


def as_json(entry: Entry, others: tuple[Entry, ...] = ()) -> dict[str, object]:
    """The stable JSON form: unknown is null, enumerations are their words."""
    from kcover_ebpf.output.formatting import SCHEMA

    return {
        "schema": SCHEMA,
        "kind": entry.name.split()[0],
        "number": entry.number,
        "mnemonic": entry.mnemonic,
        "meaning": entry.meaning,
        "domain": entry.domain.value,
        "action": entry.action.value,
        "advice": entry.advice,
        "job_survives": entry.survival.value,
        "ends_job": judge(entry).ends_job,
        "device_unfit": judge(entry).device_unfit,
        "since": entry.since or None,
        "until": entry.until or None,
        "source": list(entry.source),
        "says": dict(entry.says),
        "disagreement": entry.disagreement or None,
        "other_meanings": [as_json(other) for other in others],
    }


def as_text(entry: Entry, others: tuple[Entry, ...] = ()) -> str:
    """The form for people, one fact per line."""
    rows = [
        ("meaning", entry.meaning),
        ("fault of", entry.domain.value),
        ("do", f"{entry.action.value}: {entry.advice}".removesuffix(": ")),
        ("job continues", entry.survival.value),
        (
            "driver",
            " ".join(
                filter(
                    None,
                    (entry.since and f"from {entry.since}", entry.until and f"to {entry.until}"),
                )
            ),
        ),
        ("other sources", "; ".join(f"{who}: {words}" for who, words in entry.says.items())),
        ("sources disagree", entry.disagreement),
        ("source", "; ".join(entry.source)),
    ]
    lines = [
        f"{entry.name} {entry.mnemonic}",
        *(f"  {label:<14}{value}" for label, value in rows if value),
    ]
    lines += [
        f"  other meaning {other.mnemonic} (driver {other.since or 'any'} to "
        f"{other.until or 'now'}): {other.meaning}"
        for other in others
    ]
    return "\n".join(lines)
