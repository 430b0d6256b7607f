"""No text can keep a regular expression of the package busy.

Python's `re` holds the interpreter lock while it searches. So a pattern that backtracks stops every thread of the
agent, and each is fed with long runs of what it repeats.
"""

import ast
import importlib
import pkgutil
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kcover_ebpf

PACKAGE = Path(str(kcover_ebpf.__file__)).parent
LENGTHS = (256, 2 << 10, 32 << 10)
"""The last is the longest text that meets a pattern of ours: a line of a container's log, joined (`partial_lines`)."""
MOST_CPU_S = 0.02
"""A linear pattern takes below 2 ms on one core for this length. A quadratic one takes this long on the fastest, also
where each attempt is short."""
MOST_GROWTH = 8.0
"""For a text four times as long: a linear pattern takes 4 times as long, a quadratic one 16 times."""
MOST_LINEAR_CPU_S = 1.0
"""No machine is so busy that a linear pattern takes as long."""
ATTEMPTS = 5
"""Others on the machine make a call slower, never faster: the shortest of several is its own."""
ROUNDS = 8
"""Of so many attempts each, until one shows that the pattern is fast."""
CHILD_CPU_S = 600
_PARSE: Any = vars(re)["_parser"].parse
METHODS = {"match", "fullmatch", "search", "finditer", "sub", "findall"}
OF_THE_OPERATOR = {
    "kcover_ebpf.logs.scanner._PARTS": "reads log rules, of 2,000 characters at most, at the start",
}
ENDS = ("", "\0", "\n", "x")


def example(items: Any, skipped: Any = None) -> str:
    """A short text that the parsed pattern matches, up to the item `skipped`."""
    parts = []
    for item in items:
        if item is skipped:
            break
        parts.append(_example_of(*item))
    return "".join(parts)


def _example_of(code: Any, value: Any) -> str:
    name = str(code)
    if name == "LITERAL":
        return chr(int(value))
    if name == "NOT_LITERAL":
        return "a" if value != ord("a") else "b"
    if name == "ANY":
        return "a"
    if name == "IN":
        return str(characters(value)[0])
    if name == "BRANCH":
        return example(value[1][0])
    if name == "SUBPATTERN":
        return example(value[3])
    if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
        return example(value[2]) * max(1, int(value[0]))
    if name == "ATOMIC_GROUP":
        return example(value)
    return ""


def characters(class_: Any) -> list[str]:
    """Some of a class: letters, digits, blanks and marks are what classes of ours distinguish."""
    source = [chr(number) for number in range(1, 128)]
    pattern = re.compile(_source_of(class_))
    preferred = "a0 \t._-/:([\"'"
    found = [mark for mark in (*preferred, *source) if pattern.fullmatch(mark)]
    return found or ["a"]


def _source_of(class_: Any) -> str:
    parts = []
    for code, value in class_:
        name = str(code)
        if name == "NEGATE":
            parts.append("^")
        elif name == "LITERAL":
            parts.append(re.escape(chr(value)))
        elif name == "RANGE":
            parts.append(f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}")
        elif name == "CATEGORY":
            parts.append(
                {
                    "CATEGORY_DIGIT": r"\d",
                    "CATEGORY_NOT_DIGIT": r"\D",
                    "CATEGORY_SPACE": r"\s",
                    "CATEGORY_NOT_SPACE": r"\S",
                    "CATEGORY_WORD": r"\w",
                    "CATEGORY_NOT_WORD": r"\W",
                }[str(value)]
            )
    return f"[{''.join(parts)}]"


def repeats(items: Any, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Of each repetition: an example of what comes before it, and what it repeats."""
    for item in items:
        code, value = item
        name = str(code)
        here = prefix + example(items, item)
        if name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            inner = value[2]
            units = [example(inner)]
            if len(inner) == 1 and str(inner[0][0]) == "IN":
                units = characters(inner[0][1])[:6]
            yield here, units
            yield from repeats(inner, here)
        elif name == "SUBPATTERN":
            yield from repeats(value[3], here)
        elif name == "BRANCH":
            for branch in value[1]:
                yield from repeats(branch, here)
        elif name == "ATOMIC_GROUP":
            yield from repeats(value, here)


def texts(pattern: re.Pattern[Any], length: int) -> Iterator[str]:
    """Long texts that are meant to make it backtrack."""
    source = pattern.pattern
    if isinstance(source, bytes):
        source = source.decode("latin-1")
    parsed = _PARSE(source, pattern.flags & ~re.UNICODE)
    whole = example(parsed)
    if whole:
        yield whole * (length // len(whole))
    for prefix, units in repeats(parsed):
        for unit in filter(None, units):
            run = unit * (length // len(unit))
            for end in ENDS:
                yield prefix + run + end
            if prefix:
                piece = prefix + unit * 64
                yield piece * (length // len(piece))
                yield prefix * (length // len(prefix)) + unit


def inline(module: Path) -> Iterator[tuple[str, str]]:
    """Patterns that a call of `re` names itself, and that call."""
    for node in ast.walk(ast.parse(module.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr != "compile"
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            yield node.args[0].value, node.func.attr


def calls(module: Path) -> dict[str, set[str]]:
    """By name of a pattern: the methods of it that the module calls."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.setdefault(node.value.id, set()).add(node.attr)
    return found


def kept(value: object) -> Iterator[re.Pattern[Any]]:
    """The patterns in a global of a module."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)):
        for part in value:
            yield from kept(part)
    elif isinstance(value, dict):
        yield from kept(tuple(value.values()))


def all_patterns() -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    """Each pattern of the package: where it is, and the methods by which it is applied."""
    for info in pkgutil.walk_packages([str(PACKAGE)], "kcover_ebpf."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        file = Path(str(module.__file__))
        by_name = calls(file)
        # one that is passed on, or is in a list, is applied under another name
        passed_on = set().union(*(used for name, used in by_name.items() if name.islower()))
        for name, value in vars(module).items():
            for pattern in kept(value):
                used = by_name.get(name, passed_on) & METHODS
                if f"{info.name}.{name}" not in OF_THE_OPERATOR:
                    yield f"{info.name}.{name}", pattern, used or {"match"}
        for source, method in inline(file):
            yield f"{info.name}: re.{method}({source!r})", re.compile(source), {method}


def cpu_s(pattern: re.Pattern[Any], method: str, text: str) -> float:
    """CPU seconds that one call takes."""
    data = text.encode("utf-8", "replace") if isinstance(pattern.pattern, bytes) else text
    began_s = time.process_time()
    if method == "sub":
        pattern.sub(data[:0], data)
    elif method == "finditer":
        list(pattern.finditer(data))
    else:
        getattr(pattern, method)(data)
    return time.process_time() - began_s


def is_slow(pattern: re.Pattern[Any], method: str, text: str, quarter: str) -> bool:
    """With several calls of each text, in turn: what else the machine does at the time slows all of them."""
    took_s, quarters_s = [], []
    for _ in range(ROUNDS):
        for _ in range(ATTEMPTS):
            took_s.append(cpu_s(pattern, method, text))
            quarters_s.append(cpu_s(pattern, method, quarter))
        if min(took_s) <= max(MOST_CPU_S, MOST_GROWTH * min(quarters_s)):
            return False
    return True


def slow(pattern: re.Pattern[Any], method: str) -> str | None:
    """A text that takes longer than any may; the short ones first, for what takes seconds there does not end later."""
    for length in LENGTHS:
        for text, quarter in zip(texts(pattern, length), texts(pattern, length // 4), strict=True):
            took_s = cpu_s(pattern, method, text)
            if took_s > MOST_LINEAR_CPU_S or (
                took_s > MOST_CPU_S and is_slow(pattern, method, text, quarter)
            ):
                return f"{took_s:.2f} s for {length} characters, {text[:40]!r}..."
    return None


def check_all() -> None:
    """Prints each pattern before it is tried, and what was slow."""
    for place, pattern, methods in all_patterns():
        for method in sorted(methods):
            print(f"tried {place}.{method}", flush=True)
            if (why := slow(pattern, method)) is not None:
                print(f"SLOW {place}.{method}: {why}", flush=True)


@pytest.mark.timeout(CHILD_CPU_S * 3)
def test_patterns__none_of_the_package_is_slow_for_any_text() -> None:
    # the child's CPU time has an end: a pattern that backtracks does not return
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.repository.test_patterns"],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CHILD_CPU_S, CHILD_CPU_S)),
    )
    tried = [line for line in child.stdout.splitlines() if line.startswith("tried ")]
    assert child.returncode == 0, f"{tried[-1:]} did not return: {child.stderr[-500:]}"
    assert [line for line in child.stdout.splitlines() if line.startswith("SLOW ")] == []
    assert len(tried) >= 60


@pytest.mark.timeout(CHILD_CPU_S * 3)
def test_slow__a_pattern_that_backtracks_is_found() -> None:
    assert slow(re.compile(r"step\s*=?\s*\[?\s*(\d+)"), "search") is not None
    assert slow(re.compile(r"step\s{0,8}=?\s{0,8}(\d+)"), "search") is None


@pytest.mark.parametrize(
    ("costs_s", "expected"),
    [
        ([0.5, 0.3, 0.002], False),
        ([0.5, 0.4], False),
        ([0.5, 0.02], True),
        ([5.0, 1.3], True),
    ],
    ids=["disturbed", "linear on a slow machine", "quadratic", "linear and far too slow"],
)
def test_slow__a_busy_machine_makes_no_pattern_slow(
    monkeypatch: pytest.MonkeyPatch, costs_s: list[float], expected: bool
) -> None:
    """`costs_s`: of the long text, call by call, the last for all that follow; of its quarter a quarter or the last."""
    calls: dict[int, int] = {}

    def cost_s(_pattern: object, _method: str, text: str) -> float:
        if len(text) <= LENGTHS[-1] // 4 + 8:
            return costs_s[-1] if len(costs_s) == 2 and len(text) > LENGTHS[1] + 8 else 0.0001
        calls[0] = calls.get(0, -1) + 1
        return costs_s[min(calls[0], len(costs_s) - 1)] if len(costs_s) > 2 else costs_s[0]

    monkeypatch.setattr(f"{__name__}.cpu_s", cost_s)
    assert (slow(re.compile(r"a{1,40000}b"), "search") is not None) == expected


if __name__ == "__main__":
    check_all()
