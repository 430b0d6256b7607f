"""The table of exit codes: what each means, and where its cause most likely lies."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.model.verdict import FailureClass


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One row of exit_codes.toml: a code, its meaning and the likely cause."""

    code: int
    meaning: str
    advice: str
    failure: FailureClass = FailureClass.UNKNOWN


@cache
def table() -> Mapping[int, ExitCode]:
    """All rows of the table, by exit code."""
    text = (files("kcover_ebpf.logs") / "exit_codes.toml").read_text(encoding="utf-8")
    rows = (
        ExitCode(
            item["code"],
            item["meaning"],
            item["advice"],
            FailureClass(item.get("class", FailureClass.UNKNOWN.value)),
        )
        for item in tomllib.loads(text)["code"]
    )
    return {row.code: row for row in rows}


def of_end(end: str) -> ExitCode | None:
    """The row for the end of a rank, "code N" or "signal N" as in a snapshot; None if the table has none."""
    word, _, number = end.partition(" ")
    if not number.isdecimal() or len(number) > 3 or word not in ("code", "signal"):
        return None
    return table().get(int(number) + (128 if word == "signal" else 0))
