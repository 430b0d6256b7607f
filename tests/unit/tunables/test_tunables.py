"""Numbers that decide behaviour are in `kcover_ebpf/tunables`, each with a reason, and each is read (decision 0013)."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "kcover_ebpf"
TUNABLES = sorted((PACKAGE / "tunables").glob("[a-z]*.py"))
ELSEWHERE = sorted(
    path for path in PACKAGE.rglob("*.py") if path not in TUNABLES and path.stem != "settings"
)
UNIT = re.compile(
    r"_?(?:[A-Z][A-Z0-9_]*_)?"
    r"(S|NS|MS|SHARE|PERCENT|CELSIUS|RATE|FACTOR|PASSES|PERIODS|EVERY|CORES|NICENESS)"
)

NVIDIAS = "beside the limits of NVIDIA that it belongs to"

# file:name -> why it is no tunable
NO_TUNABLE = {
    "diagnosis/clock/silences.py:_MOST_S": "a bound of the format",
    "diagnosis/clock/silences.py:_MOST_OBSERVED_S": "a bound of the format",
    "diagnosis/evidence/evidence.py:_SHOWN_S": "which reading of NVML a sentence may quote",
    "diagnosis/history/traffic.py:_RTO_MIN_S": "a constant of the kernel",
    "diagnosis/wait_table.py:_GIVES_UP_S": "defaults of frameworks",
    "diagnosis/waits/helpers.py:_TICK_NS": "a constant of the kernel",
    "api/agent_lease.py:_MOST_VALID_S": "a bound of the format",
    "api/rfc3339.py:_LEAST_S": "a bound of the format",
    "api/rfc3339.py:_MOST_S": "a bound of the format",
    "facts/kernel.py:CALM_EVERY": "the same as in bpf/pass.bpf.h, to which tests/kernel/test_turns.py holds it",
    "host/blocked_call.py:_FOREVER_S": "what fits into no timespec of a program that means it",
    "ids.py:NS": "a unit",
    "inspection/checks/nvml.py:_PAUSE_S": NVIDIAS,
    "inspection/checks/nvml_gpu.py:_NEAR_CELSIUS": NVIDIAS,
    "kernel/clock.py:_START_S": "a constant of the kernel",
    "kernel/clock.py:_UNDECIDED_S": "follows from constants of the kernel",
    "output/metrics.py:DETECTION_BUCKETS_S": "buckets of a histogram",
}


def assigned(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Names that a statement assigns a number to, or several."""
    if isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target, value = node.target, node.value
    else:
        return []
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    return [(name.id, number) for name, number in pairs if isinstance(name, ast.Name)]


def is_number(value: ast.expr) -> bool:
    """A number, or a tuple or dictionary of numbers, whatever its keys; what others are computed from is not."""
    match value:
        case ast.Constant(value=number):
            return isinstance(number, int | float)
        case ast.Name(id=name):
            return name == "NS"
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.Dict(values=values):
            return all(map(is_number, values))
        case ast.Tuple(elts=elements):
            return bool(elements) and is_number(elements[-1])
    return False


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


@cache
def imported_names() -> dict[str, set[str]]:
    """By module: what any module of the package imports from it."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found.setdefault(node.module, set()).update(alias.name for alias in node.names)
    return found


@pytest.mark.parametrize("module", ELSEWHERE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_tunables__no_tunable_is_elsewhere(module: Path) -> None:
    found = scattered(str(module.relative_to(PACKAGE)), module.read_text())
    assert [text for text in found if text not in NO_TUNABLE] == []


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
    read = imported_names().get(f"kcover_ebpf.tunables.{module.stem}", set())
    assert names - read == set()


def test_scattered__seconds_shares_and_sums_but_not_sizes() -> None:
    text = "A_S = 2.0\n_B_NS = 3 * NS\n_C_SHARE, _D_RATE = 0.5, 1 << 4\n_MOST = 8\nE_S = A_S / 2\n"
    assert scattered("m", text) == ["m:A_S", "m:_B_NS", "m:_C_SHARE", "m:_D_RATE"]


def test_scattered__tuples_dictionaries_and_annotated_numbers() -> None:
    text = (
        'A_S: Final = -60.0\nB_S = (0.5, 1.0)\nC_S = (("nccl", 600.0), ("gloo", 1800.0))\n'
        "D_S = {Verb.STOP: 10.0, Verb.KILL: 5}\nE_S = {Verb.STOP: STOP_S}\nPASSES = 12\nF_S: float\n"
    )
    assert scattered("m", text) == ["m:A_S", "m:B_S", "m:C_S", "m:D_S", "m:PASSES"]


def test_no_tunable__every_exemption_is_needed() -> None:
    found = {
        text
        for path in ELSEWHERE
        for text in scattered(str(path.relative_to(PACKAGE)), path.read_text())
    }
    assert NO_TUNABLE.keys() - found == set()


def test_without_reason__a_number_without_a_docstring() -> None:
    assert without_reason('A_S = 1\n"""Why."""\nB_S = 2\n_NS = 3\n') == ["B_S"]
