"""House rule: a field of a dataclass is filled by the package itself, and read by it (CONTRIBUTING.md).

A field that only tests fill is a feature that does not work, and its tests are green.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.unit.support.fields import Record, parse, records, unused, uses

_OPTION = "its default is the program's own; tests give another"
_POLICY = "read from a policy, which users write"
_DOCUMENT = "written as JSON for people and programs that read it there"
_TEMPLATE = "shown by the page's template"
UNFILLED: dict[str, str] = {
    "output.bundles.BundleBounds.size_bytes": _OPTION,
    "postmortem.svg.*": "a length of the drawing, which its template asks for",
    "api.fault_policy.Expression.*": _POLICY,
    "api.fault_policy.Selector.*": _POLICY,
    "api.fault_policy.NodeActions.inspection": _POLICY,
    "api.fault_policy.FaultPolicy.*": _POLICY,
    "api.fault_policy.Avoidance.*": _POLICY,
    "api.fault_policy.SavePolicy.*": _POLICY,
    "api.custom_kind.*": "read from a JobKind, which operators write",
    "api.fault_policy.NotifyRule.*": _POLICY,
    "notify.target.NotifyTarget.*": "read from the operator's list",
    "notify.target._Targets.*": "read from the operator's list",
    "settings.Policy.*": _POLICY,
    "settings.Settings.ring_bytes": _OPTION,
    "settings.Settings.max_threads": _OPTION,
    "settings.Settings.gpu_period_s": _OPTION,
    "controller.main.ControllerOptions.workers": _OPTION,
    "collectives.ras.client.RasPatience.*": _OPTION,
    "inspection.options.InspectionOptions.pause": _OPTION,
}
UNREAD: dict[str, str] = {
    "archive.manifest.ArchivedFile.size_bytes": _DOCUMENT,
    "archive.manifest.Manifest.schema": "checked by the reader before the file is decoded",
    "archive.node_part.GroupPressure.throttled": _TEMPLATE,
    "postmortem.*": _TEMPLATE,
    "views.wait_graph.GraphGroup.is_culprit": _TEMPLATE,
    "api.fault_report.FaultReport.agent": _DOCUMENT,
    "api.node_health.NodeHealth.agent": _DOCUMENT,
    "cli.kubectl_nodes._Row.inspected": _DOCUMENT,
    "inspection.result.Check.examines": "printed by tools/inspection_doc.py",
    "inspection.checks.d_state._Sleeper.switches": "compared with the same of a moment later",
    "output.job_board.BoardJob.acts_in_s": _DOCUMENT,
    "tapes.entries.End.left_out_count": _DOCUMENT,
    "tapes.entries.Header.schema": "checked by the reader before the line is decoded",
    "trace.records.TracedThread.ends_in_s": _DOCUMENT,
}
_SOURCES = parse(Path(__file__).resolve().parents[3] / "kcover_ebpf")
_RECORDS = records(_SOURCES)
_USES = uses(_SOURCES.values(), _RECORDS)


def _of(record: Record, fields: list[str]) -> list[str]:
    return [f"{record.module}.{record.name}.{field}" for field in fields]


def _unfilled() -> list[str]:
    frozen = [record for record in _RECORDS if record.frozen]
    return [name for record in frozen for name in _of(record, unused(record, _USES.filled))]


def _unread() -> list[str]:
    return [name for record in _RECORDS for name in _of(record, unused(record, _USES.read))]


def _not_listed(names: list[str], listed: dict[str, str]) -> list[str]:
    return [name for name in names if not any(fnmatch(name, text) for text in listed)]


def test_fields__every_field_is_filled_by_the_package() -> None:
    assert _not_listed(_unfilled(), UNFILLED) == []


def test_fields__every_field_is_read_by_the_package() -> None:
    assert _not_listed(_unread(), UNREAD) == []


@pytest.mark.parametrize(
    ("names", "listed"), [(_unfilled(), UNFILLED), (_unread(), UNREAD)], ids=["unfilled", "unread"]
)
def test_fields__every_exception_is_still_one(names: list[str], listed: dict[str, str]) -> None:
    assert [text for text in listed if not any(fnmatch(name, text) for name in names)] == []


_DECLARED = """
@dataclass(frozen=True)
class Fact:
    a: int
    b: int = 0

@dataclass(frozen=True)
class Other:
    b: int

@dataclass(frozen=True)
class Special(Fact):
    c: int
"""

_MIRROR = """
class Mirror(ctypes.Structure):
    _fields_ = (("b", c_uint32),)
"""


@pytest.mark.parametrize(
    ("code", "unfilled", "unread"),
    [
        ("Fact(1, 2)", [], ["a", "b"]),
        ("Fact(1)", ["b"], ["a", "b"]),
        ("Fact(1)\nreplace(known, b=3)", [], ["a", "b"]),
        ("facts.Fact(b=1, a=2)", [], ["a", "b"]),
        ("Fact(*words)", [], ["a", "b"]),
        ("Other(b=1)", ["a", "b"], ["a", "b"]),
        ("Special(1, a=2)", ["b"], ["a", "b"]),
        ("Special(1, **rest)", [], ["a", "b"]),
        ("def f(x: Special): return x.b", ["a", "b"], ["a"]),
        ("def f(x: Other): return x.b", ["a", "b"], ["a", "b"]),
        ("def f(x: Fact): return x.b", ["a", "b"], ["a"]),
        ("def f(x: Fact | Other): return x.b", ["a", "b"], ["a"]),
        ("def f(x: Seen | Other): return x.b", ["a", "b"], ["a"]),
        ("def f(x: m.Fact | None): return x.b", ["a", "b"], ["a"]),
        ("def f(x: m.Mirror): return x.b", ["a", "b"], ["a", "b"]),
        ("def f(x: list[m.Other]): return x.b", ["a", "b"], ["a"]),
        ("for x in y: print(x.b)", ["a", "b"], ["a"]),
        ("match x:\n  case Fact(b=1): pass", ["a", "b"], ["a"]),
        ("match x:\n  case Other(): print(x.b)", ["a", "b"], ["a", "b"]),
        ("match x:\n  case m.Fact() if x.b: pass", ["a", "b"], ["a"]),
        ("match x:\n  case Other() | Fact() as y: print(y.b)", ["a", "b"], ["a"]),
        ("match x:\n  case Other() | None: print(x.b)", ["a", "b"], ["a"]),
        ("match x:\n  case Other(): pass\n  case _: print(x.b)", ["a", "b"], ["a"]),
    ],
)
def test_uses__of_one_class(code: str, unfilled: list[str], unread: list[str]) -> None:
    declared = {"m": ast.parse(_DECLARED)}
    known = records(declared)
    found = uses([ast.parse(code), ast.parse(_MIRROR)], known)
    fact = known[0]
    assert (unused(fact, found.filled), unused(fact, found.read)) == (unfilled, unread)
