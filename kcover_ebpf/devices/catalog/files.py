"""Reads the data files of the catalogue and the operator's overrides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kcover_ebpf.devices.catalog import (
    FIRST_SXID,
    Action,
    Catalog,
    Domain,
    Entry,
    Survival,
    override,
    version_key,
)
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.settings import read_table

_NEEDED = ("mnemonic", "meaning", "domain", "action", "survival")


@cache
def shipped() -> Catalog:
    """The catalogue that is part of this package."""
    found: dict[int, list[Entry]] = {}
    for entry in (*_xids(_table("xid.toml")), *_sxids(_table("sxid.toml"))):
        found.setdefault(entry.number, []).append(entry)
    order = {number: tuple(sorted(group, key=_age)) for number, group in found.items()}
    return Catalog(order)


def load(overrides: Path | None = None) -> Catalog:
    """The shipped catalogue with an operator's changes; raises `PolicyError` for a bad file."""
    return shipped() if overrides is None else _overridden(shipped(), overrides)


def _age(entry: Entry) -> tuple[bool, tuple[int, ...]]:
    return not entry.until, version_key(entry.since)


def _table(name: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


def _xids(table: Mapping[str, Any]) -> list[Entry]:
    return [_entry(row, table["sources"]) for row in table["xid"]]


def _entry(row: Mapping[str, Any], sources: Mapping[str, str]) -> Entry:
    words = {key: row[key] for key in ("disagreement", "says", "since", "until") if key in row}
    return Entry(
        number=row["number"],
        mnemonic=row["mnemonic"],
        meaning=row["meaning"],
        domain=Domain(row["domain"]),
        action=Action(row["action"]),
        survival=Survival(row["survival"]),
        advice=row["advice"],
        source=tuple(sources[key] for key in row["source"]),
        **words,
    )


def _sxids(table: Mapping[str, Any]) -> list[Entry]:
    classes = {number: group for group in reversed(table["class"]) for number in group["numbers"]}
    unknown = {
        "meaning": "documented by name only",
        "domain": "fabric",
        "action": "contact_support",
        "survival": "depends",
        "advice": "count it; contact support if jobs die with it",
    }
    entries = []
    for unit in table["unit"]:
        for position, name in enumerate(unit["names"], start=1):
            number = unit["base"] + position
            group = classes.get(number, unknown)
            row = {
                **{key: group[key] for key in ("domain", "action", "survival", "advice")},
                "number": number,
                "mnemonic": unit["prefix"] + name,
                "meaning": f"{unit['what']}: {group['meaning']}",
                "disagreement": table["disagreement"].get(str(number), ""),
                "source": list(table["sources"]),
            }
            entries.append(_entry(row, table["sources"]))
    return entries


def _overridden(catalog: Catalog, path: Path) -> Catalog:
    for kind, rows in read_table(path, "catalogue").items():
        if kind not in ("xid", "sxid") or not isinstance(rows, dict):
            raise PolicyError(f"catalogue {path}: [{kind}] is unknown; use [xid.N] or [sxid.N]")
        for key, changes in rows.items():
            number = _number(path, kind, key)
            if not isinstance(changes, dict):
                raise PolicyError(
                    f"catalogue {path}: {kind}.{key} must be a table like [{kind}.{key}]"
                )
            catalog = catalog.replaced(number, _changed(catalog, path, number, changes))
    return catalog


def _number(path: Path, kind: str, key: str) -> int:
    is_number = key.isascii() and key.isdecimal() and len(key) < 8
    if not is_number or (int(key) >= FIRST_SXID) != (kind == "sxid"):
        raise PolicyError(f"catalogue {path}: {key!r} is no {kind} number")
    return int(key)


def _changed(
    catalog: Catalog, path: Path, number: int, changes: dict[str, Any]
) -> tuple[Entry, ...]:
    variants = catalog.variants(number)
    if not variants:
        if missing := [key for key in _NEEDED if key not in changes]:
            raise PolicyError(
                f"catalogue {path}: the new number {number} also needs {', '.join(missing)}"
            )
        variants = (Entry(number, "", "", Domain.DRIVER, Action.NONE, Survival.YES, "", ()),)
    try:
        return tuple(override(entry, changes) for entry in variants)
    except KeyError as error:
        raise PolicyError(f"catalogue {path}: {number} has no field {error}") from error
    except ValueError as error:
        raise PolicyError(f"catalogue {path}: {number}: {error}") from error
