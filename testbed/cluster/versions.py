"""Reads versions.toml: which Kubernetes, which programs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from testbed.cluster.errors import Usage

FILE = Path(__file__).with_name("versions.toml")


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """One release, and what is switched on in it beyond the defaults."""

    version: str
    sum: str
    gates: str = ""
    apis: str = ""

    @property
    def minor(self) -> str:
        """Such as 36."""
        return self.version.split(".")[1]


@dataclass(frozen=True, slots=True)
class Program:
    """A command of a Go module, whose go.mod and go.sum count."""

    name: str
    module: str
    version: str
    sum: str
    package: str = "."
    cgo: bool = False
    """Part of it is C: it is linked with this machine's libc and needs a C compiler."""
    main: str = ""
    """Go source of a main package of our own, which takes less of the module than its own does."""
    requires: tuple[str, ...] = ()
    """Further modules of it, each with its version; their hashes are checked against Go's checksum database."""
    with_kubernetes: bool = False
    """Built in one module with the default Kubernetes, so that what they share is compiled once."""


@dataclass(frozen=True, slots=True)
class Controller:
    """A job controller; `namespace` is where all its deployments are."""

    name: str
    programs: list[str]
    namespace: str
    needs: tuple[str, ...] = ()
    asked_for: bool = False
    """Only installed when it is asked for by its name; `all` leaves it out."""


@cache
def _file() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


def go() -> str:
    """The lowest Go version that builds everything, such as 1.26.0."""
    return str(_file()["go"])


def kubernetes(wanted: str | None) -> Kubernetes:
    """The release by its minor version, None for the default; raises Usage for an unknown one."""
    known: dict[str, Any] = _file()["kubernetes"]
    name = wanted or next(iter(known))
    if name not in known:
        raise Usage(f"--kubernetes {name}: only {', '.join(known)} are known")
    return Kubernetes(**known[name])


def by_version(version: str) -> Kubernetes:
    """The release by its full version; raises Usage for one that this checkout does not know."""
    known: dict[str, Any] = _file()["kubernetes"]
    for fields in known.values():
        if fields["version"] == version:
            return Kubernetes(**fields)
    raise Usage(f"this checkout does not know the running Kubernetes {version}: take it down first")


def program(name: str) -> Program:
    fields = _file()["program"][name]
    return Program(name, **fields | {"requires": tuple(fields.get("requires", ()))})


def with_kubernetes() -> list[Program]:
    """Those built in one module with the default Kubernetes."""
    programs = [program(name) for name in _file()["program"]]
    return [program for program in programs if program.with_kubernetes]


def controller(name: str) -> Controller:
    return Controller(name, **_file()["controller"][name])


def controllers() -> list[Controller]:
    """In the order in which they are installed."""
    return [controller(name) for name in _file()["controller"]]
