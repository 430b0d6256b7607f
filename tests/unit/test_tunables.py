"""Numbers that decide behaviour are in `kcover_ebpf/tunables`, each with a reason, and each is read (decision 0013)."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "kcover_ebpf"
TUNABLES = sorted((PACKAGE / "tunables").glob("[a-z]*.py"))
JUDGING = ("diagnosis", "cluster", "recovery", "agent", "controller", "watching")
ELSEWHERE = sorted(path for name in JUDGING for path in (PACKAGE / name).rglob("*.py"))
UNIT = re.compile(r"_?[A-Z][A-Z0-9_]*_(S|NS|MS|SHARE|RATE|FACTOR|PASSES|CORES|NICENESS)")

# file:name -> why it is no tunable
NO_TUNABLE = {
    "diagnosis/evidence.py:_SHOWN_S": "which reading of NVML a sentence may quote",
    "diagnosis/traffic.py:_RTO_MIN_S": "a constant of the kernel",
    "controller/idle_events.py:_DAY_S": "for text",
    "controller/telemetry.py:_BUCKETS_S": "buckets of a histogram",
    "controller/idle_events.py:_HOUR_S": "for text",
}


def assigned(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Names that a statement assigns a number to, or several."""
    if not isinstance(node, ast.Assign):
        return []
    target, value = node.targets[0], node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    return [(name.id, number) for name, number in pairs if isinstance(name, ast.Name)]


def is_number(value: ast.expr) -> bool:
    leaves = [each for each in ast.walk(value) if not isinstance(each, ast.operator | ast.unaryop)]
    return all(
        isinstance(each, ast.BinOp | ast.UnaryOp | ast.Tuple | ast.expr_context)
        or (isinstance(each, ast.Constant) and isinstance(each.value, int | float))
        or (isinstance(each, ast.Name) and each.id in ("NS", "_NS"))
        for each in leaves
    )


def scattered(name: str, text: str) -> list[str]:
    """Constants of a module that have the unit of a tunable."""
    found = [pair for node in ast.parse(text).body for pair in assigned(node)]
    return [
        f"{name}:{constant}"
        for constant, value in found
        if UNIT.fullmatch(constant) and is_number(value)
    ]


def without_reason(text: str) -> list[str]:
    """Public constants that no docstring follows."""
    body = ast.parse(text).body
    return [
        constant
        for node, after in zip(body, [*body[1:], ast.Pass()], strict=True)
        for constant, _ in assigned(node)
        if not constant.startswith("_")
        and not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant))
    ]


@pytest.mark.parametrize("module", ELSEWHERE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_tunables__no_tunable_is_elsewhere(module: Path) -> None:
    found = scattered(str(module.relative_to(PACKAGE)), module.read_text())
    assert [each for each in found if each not in NO_TUNABLE] == []


@pytest.mark.parametrize("module", TUNABLES, ids=lambda path: path.stem)
def test_tunables__every_tunable_has_a_reason(module: Path) -> None:
    assert without_reason(module.read_text()) == []


@pytest.mark.parametrize("module", TUNABLES, ids=lambda path: path.stem)
def test_tunables__every_tunable_is_read(module: Path) -> None:
    names = {
        name
        for node in ast.parse(module.read_text()).body
        for name, _ in assigned(node)
        if not name.startswith("_")
    }
    read = {
        alias.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == f"kcover_ebpf.tunables.{module.stem}"
        for alias in node.names
    }
    assert names - read == set()


def test_scattered__seconds_shares_and_sums_but_not_sizes() -> None:
    text = "A_S = 2.0\n_B_NS = 3 * NS\n_C_SHARE, _D_RATE = 0.5, 1 << 4\n_MOST = 8\nE_S = A_S / 2\n"
    assert scattered("m", text) == ["m:A_S", "m:_B_NS", "m:_C_SHARE", "m:_D_RATE"]


def test_without_reason__a_number_without_a_docstring() -> None:
    assert without_reason('A_S = 1\n"""Why."""\nB_S = 2\n_NS = 3\n') == ["B_S"]
