"""The numbers that decide a verdict, found in the source by who reads them; and one of them changed.

A number decides if a room that judges reads it: halved or doubled, it can change whether a job is ended, which rank is
named, how certain that is, or when. It is found by the imports of `kcover_ebpf.diagnosis`, `gang` and `model`, so that
none is forgotten. What an operator sets (`Policy`) is not among them.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "kcover_ebpf"
ROOMS = ("diagnosis", "gang", "model")
"""Folders of the package in which a verdict is made."""
MEASURES = frozenset({"history", "membership"})
"""Rooms that say what a thread or a link does, and who is a rank; the others say what follows from it."""
NO_JUDGES: Mapping[str, str] = {
    "diagnosis/history/port_errors.py": "explains slow jobs",
    "diagnosis/judge/rdma_port.py": "explains slow jobs",
    "gang/log_evidence.py": "quotes logs beside a verdict that is made",
    "gang/report_delays.py": "measures how long a report was on its way",
    "gang/unreported.py": "counts ends of ranks that no agent reported, for the record",
}
"""Modules of these rooms that change no verdict of a fault -> what they do."""
NO_THRESHOLDS: Mapping[str, str] = {
    "collectives": "when files of NCCL Inspector are read, and shown to people",
    "host": "how much one sample or report holds",
    "sampling": "how closely a job is observed, and how much of it is kept and reported",
    "stragglers": "slow jobs: SLOW has no certainty, and ends nothing",
    "trace": "a single run of `trace`, which ends nothing",
}
"""Modules of `kcover_ebpf.tunables` without a number that decides -> what is in them."""


@dataclass(frozen=True, slots=True, order=True)
class Number:
    """One tunable that is not computed from others: what is computed changes with its sources."""

    module: str
    """Stem of its module in `kcover_ebpf.tunables`."""
    name: str
    value: str
    """Its value as written."""
    rooms: tuple[str, ...]
    """Folders that read it, sorted; of `diagnosis` those below it."""

    @property
    def only_measures(self) -> bool:
        """True if it says what a thread, a link or a process does, and no rule compares with it."""
        return set(self.rooms) <= MEASURES


def deciding() -> list[Number]:
    """The numbers that decide: first those of the rooms that conclude, then those that only `MEASURES` read."""
    read = _read(PACKAGE)
    numbers = (
        Number(module, name, value, tuple(sorted(read[module, name])))
        for module, name, value in _own_numbers()
        if module not in NO_THRESHOLDS and (module, name) in read
    )
    return sorted(numbers, key=lambda number: (number.only_measures, number))


def others() -> list[Number]:
    """The numbers of sampling and of slow jobs: they are varied too, to show that they decide nothing."""
    return sorted(
        Number(module, name, value, (module,))
        for module, name, value in _own_numbers()
        if module in ("sampling", "stragglers")
    )


def _own_numbers() -> Iterator[tuple[str, str, str]]:
    for path in sorted((PACKAGE / "tunables").glob("[a-z]*.py")):
        for name, value in _assigned(ast.parse(path.read_text(encoding="utf-8"))):
            if not _sources(value):
                yield path.stem, name, ast.unparse(value)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value


def _sources(value: ast.expr) -> set[str]:
    """Names of the numbers that a number is computed from."""
    return {one.id for one in ast.walk(value) if isinstance(one, ast.Name)} - {"NS"}


def _read(package: Path) -> dict[tuple[str, str], set[str]]:
    """(module, name) of each tunable that a judging module reads, itself or by what is computed -> rooms."""
    found: dict[tuple[str, str], set[str]] = {}
    for folder in ROOMS:
        for path in sorted((package / folder).rglob("*.py")):
            place = path.relative_to(package).as_posix()
            if place in NO_JUDGES:
                continue
            for pair in imports(path.read_text(encoding="utf-8")):
                found.setdefault(pair, set()).add(_room(place))
    for path in sorted((package / "tunables").glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        origins = {name: module for module, name in imports(path.read_text(encoding="utf-8"))}
        for name, value in _assigned(tree):
            for source in _sources(value) if (path.stem, name) in found else ():
                origin = origins.get(source, path.stem), source
                found[origin] = found.get(origin, set()) | found[path.stem, name]
    return found


def imports(text: str) -> Iterator[tuple[str, str]]:
    """(module, name) of each tunable that the source of a module imports."""
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom) and statement.module is not None:
            package, _, module = statement.module.rpartition(".")
            if package == "kcover_ebpf.tunables":
                yield from ((module, alias.name) for alias in statement.names)


def _room(place: str) -> str:
    folders = place.split("/")[:-1]
    return folders[-1] if len(folders) > 1 else folders[0]


def changed(text: str, name: str, factor: float) -> str:
    """The source of a module in which one number is multiplied by `factor`.

    A whole number stays one, at least 1. A share above one half cannot be doubled: what it lacks to 1 is halved.
    """
    tree = ast.parse(text)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            call = ast.parse(f"_times({name!r}, 0, {factor!r})", mode="eval").body
            assert isinstance(call, ast.Call)
            call.args[1] = statement.value
            statement.value = call
            break
    else:
        raise KeyError(name)
    helper = ast.parse("from bench.tapebench.deciding import times as _times").body
    # after the import of annotations, which must be first
    place = next(
        index for index, one in enumerate(tree.body) if isinstance(one, ast.ImportFrom | ast.Assign)
    )
    tree.body[place + 1 : place + 1] = helper
    return ast.unparse(ast.fix_missing_locations(tree))


def times(name: str, value: float | tuple[float, ...], factor: float) -> object:
    """The value of a number, or of several, multiplied by `factor` as in `changed`."""
    if isinstance(value, tuple):
        return tuple(times(name, one, factor) for one in value)
    if name.endswith("_SHARE") and 0.5 < value < 1 and factor > 1:
        return 1 - (1 - value) / factor
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


class _Changed(importlib.abc.SourceLoader):
    """Loads one module of tunables with one number changed."""

    def __init__(self, path: Path, name: str, factor: float) -> None:
        self._path, self._name, self._factor = path, name, factor

    def get_filename(self, fullname: str) -> str:
        return str(self._path)

    def get_data(self, path: str | bytes) -> bytes:
        text = Path(str(path)).read_text(encoding="utf-8")
        return changed(text, self._name, self._factor).encode()


def install(number: Number, factor: float) -> None:
    """Change a number for this process. Must be called before anything that reads it is imported."""
    full = f"kcover_ebpf.tunables.{number.module}"
    assert full not in sys.modules, f"{full} is already read"
    package = importlib.import_module("kcover_ebpf.tunables")
    loader = _Changed(PACKAGE / "tunables" / f"{number.module}.py", number.name, factor)
    spec = importlib.util.spec_from_loader(full, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    loader.exec_module(module)
    setattr(package, number.module, module)
