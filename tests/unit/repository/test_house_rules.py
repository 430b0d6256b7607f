"""Rules that no linter knows: short files and functions, plain words, names of tests (CONTRIBUTING.md)."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "kcover_ebpf"
MODULES = sorted(
    path
    for tree in ("kcover_ebpf", "tests", "tools", "bench", "testbed")
    for path in (ROOT / tree).rglob("*.py")
)
KERNEL_HALF = sorted((ROOT / "bpf").glob("*.[ch]"))
CHECKS = {"raises", "fail", "warns", "until", "wait_until"}
"""What fails by itself when what it waits for does not come, beside helpers that are called assert_*."""
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 40
MAX_TEST_LINES = 60
"""A test may be a story, from its beginning to its end."""
MAX_LINES = {"CHANGELOG.md": 130, "docs/bench/README.md": 220}
"""Pages to which every change would like to add."""


# File, or file:function -> why it may be longer.
EXEMPT: dict[str, str] = {
    "kcover_ebpf/output/metrics.py:__init__": "one series after the other",
    "kcover_ebpf/cli/agent.py:agent": "one argument for each option, handed on by its name",
    "kcover_ebpf/cli/controller.py:controller": "one argument for each option, handed on by its name",
    "kcover_ebpf/cli/run.py:run": "one argument for each option, handed on by its name",
    "bench/clusterbench/__main__.py:decide": "one measurement from its beginning to its end",
    "tests/unit/confined/test_confined_readers.py": "one set of readers, which take a second to start, for all its tests",  # noqa: E501
    "tests/unit/diagnosis/membership/test_kinship.py": "one builder of process trees for all its tests",
}


@lru_cache(maxsize=1)
def nodes(text: str) -> list[ast.AST]:
    """Of the file that all rules are applied to before the next one: all trees at once need much memory."""
    return list(ast.walk(ast.parse(text)))


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the function, its docstring left out."""
    end = node.end_lineno or node.lineno
    if ast.get_docstring(node) is None:
        return end - node.lineno + 1
    docstring = node.body[0]
    return end - node.lineno - ((docstring.end_lineno or 0) - docstring.lineno)


def too_long(name: str, text: str) -> list[str]:
    found = []
    if (lines := len(text.splitlines())) > MAX_FILE_LINES:
        found.append(f"{name}: {lines} lines")
    for node in nodes(text):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        most = MAX_TEST_LINES if node.name.startswith("test_") else MAX_FUNCTION_LINES
        if (lines := function_lines(node)) > most:
            found.append(f"{name}:{node.name}: {lines} lines")
    return [entry for entry in found if entry.rpartition(":")[0] not in EXEMPT]


Rule = Callable[[str, str], list[str]]


@cache
def found_by_rule() -> dict[Rule, dict[str, list[str]]]:
    """What each rule for modules finds, by file."""
    all_rules = (too_long, *OF_TESTS, without_unit, our_names)
    found: dict[Rule, dict[str, list[str]]] = {rule: {} for rule in all_rules}
    for path in MODULES:
        name, text = str(path.relative_to(ROOT)), path.read_text()
        rules: list[Rule] = [too_long]
        if path.is_relative_to(PACKAGE):
            rules.append(our_names)
        if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_"):
            rules += OF_TESTS
            rules += [without_unit] if path.is_relative_to(ROOT / "tests/unit") else []
        for rule in rules:
            found[rule][name] = rule(name, text)
    return found


def found_by(rule: Rule) -> dict[str, list[str]]:
    """What a rule finds, by file in which it finds something."""
    found = found_by_rule()[rule]
    assert found
    return {name: entries for name, entries in found.items() if entries}


def test_house_rules__files_and_functions_are_short() -> None:
    assert found_by(too_long) == {}


def test_house_rules__the_changelog_and_the_measurements_are_short() -> None:
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in MAX_LINES}
    assert {name: count for name, count in lines.items() if count > MAX_LINES[name]} == {}


def test_house_rules__files_of_the_kernel_half_are_short() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in KERNEL_HALF}
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}
    assert lines


def test_house_rules__the_rule_sees_a_long_file_and_a_long_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(EXEMPT, "b.py", "a reason")
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    long_function = f"def f():\n{body}"
    documented = f'def f():\n    """One.\n\n    Two.\n    """\n{body[10:]}'
    assert too_long("a.py", long_function) == ["a.py:f: 41 lines"]
    assert too_long("a.py", documented) == []
    assert too_long("a.py", long_function.replace("f()", "test_f()")) == []
    story = f"def test_f():\n{body}{body}"
    assert too_long("a.py", story) == ["a.py:test_f: 81 lines"]
    assert too_long("a.py", "x = 1\n" * 401) == ["a.py: 401 lines"]
    assert too_long("b.py", "x = 1\n" * 401) == []


def cannot_fail(_: str, text: str) -> list[str]:
    """Tests that check nothing: no assert, no raise, and no helper whose name says that it checks."""
    return [
        node.name
        for node in nodes(text)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not any(_is_check(other_node) for other_node in ast.walk(node))
    ]


def _is_check(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Assert | ast.Raise)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in CHECKS or name.startswith("assert_")


def test_house_rules__every_test_can_fail() -> None:
    assert found_by(cannot_fail) == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("assert run()", []),
        ("with pytest.raises(OSError):\n    run()", []),
        ("until(lambda: run(), 'a run')", []),
        ("assert_ended(run())", []),
        ("run()", ["test_a"]),
        ("with suppress(OSError):\n    run()", ["test_a"]),
    ],
)
def test_cannot_fail__a_test_without_a_check(body: str, found: list[str]) -> None:
    indented = body.replace("\n", "\n    ")
    assert cannot_fail("", f"def test_a():\n    {indented}\n") == found


def may_check_nothing(_: str, text: str) -> list[str]:
    """Tests whose checks are all behind a condition, or in a loop that may have no turn."""
    return [
        node.name
        for node in nodes(text)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not _surely_checks(node.body)
    ]


def _surely_checks(body: list[ast.stmt]) -> bool:
    return any(_is_sure(statement) for statement in body)


def _is_sure(node: ast.stmt) -> bool:
    match node:
        case ast.If():
            return _surely_checks(node.body) and _surely_checks(node.orelse)
        case ast.For():
            return _has_a_turn(node.iter) and _surely_checks(node.body)
        case ast.With():
            within = any(
                _is_check(other_node) for item in node.items for other_node in ast.walk(item)
            )
            return within or _surely_checks(node.body)
        case ast.Try():
            return _surely_checks(node.body) or _surely_checks(node.finalbody)
        case ast.Match() | ast.While() | ast.FunctionDef():
            return False
    return any(_is_check(other_node) for other_node in ast.walk(node))


def _has_a_turn(loop: ast.expr) -> bool:
    """A list that is written out, a range, or a table of constants."""
    if isinstance(loop, ast.Call):
        return any(_has_a_turn(expression) for expression in (loop.func, *loop.args))
    if isinstance(loop, ast.Attribute | ast.Starred):
        return _has_a_turn(loop.value)
    name = loop.id if isinstance(loop, ast.Name) else ""
    return (
        isinstance(loop, ast.Tuple | ast.List | ast.Constant) or name.isupper() or name == "range"
    )


def test_house_rules__every_test_checks_something_whatever_happens() -> None:
    assert found_by(may_check_nothing) == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("if a:\n    assert b", ["test_a"]),
        ("if a:\n    assert b\nelse:\n    assert c", []),
        ("for a in b:\n    assert a", ["test_a"]),
        ("for a in (1, 2):\n    assert a", []),
        ("for a in range(3):\n    assert a", []),
        ("for a, b in TABLE.items():\n    assert a", []),
        ("assert b\nfor a in b:\n    assert a", []),
        ("try:\n    run()\nexcept OSError as error:\n    assert error", ["test_a"]),
        ("with pytest.raises(OSError):\n    run()", []),
        ("with run() as one:\n    if one:\n        assert one", ["test_a"]),
    ],
)
def test_may_check_nothing__conditions_and_loops(body: str, found: list[str]) -> None:
    indented = body.replace("\n", "\n    ")
    assert may_check_nothing("", f"def test_a():\n    {indented}\n") == found


def limits_of_clocks(_: str, text: str) -> list[str]:
    """Assertions that something took less than a time, by a clock that runs on while others have the processor."""
    return [
        ast.unparse(node.test)
        for node in nodes(text)
        if isinstance(node, ast.Assert)
        for part in ast.walk(node.test)
        if isinstance(part, ast.Compare)
        and any(isinstance(operator, ast.Lt | ast.LtE) for operator in part.ops)
        and re.match(r"(.* <=? )?(time\.(monotonic|time)\(\) - \w+|took_s) <", ast.unparse(part))
    ]


def test_house_rules__no_test_limits_how_long_something_takes() -> None:
    assert found_by(limits_of_clocks) == {}


@pytest.mark.parametrize(
    ("line", "is_limit"),
    [
        ("assert time.monotonic() - began_s < 0.5", True),
        ("assert 1 <= time.time() - began_s <= 9, 'slow'", True),
        ("assert took_s < 0.5", True),
        ("assert time.monotonic() - began_s >= 0.5", False),
        ("assert 0.5 < time.monotonic() - began_s", False),
        ("assert time.monotonic() < end_s", False),
    ],
)
def test_limits_of_clocks__upper_limits_alone(line: str, is_limit: bool) -> None:
    assert bool(limits_of_clocks("", line)) is is_limit


def imported_tests(_: str, text: str) -> list[str]:
    """Modules of tests from which a module imports: what two tests need belongs into a helper."""
    modules = [
        name
        for node in nodes(text)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        + [alias.name for alias in node.names]
    ]
    return [name for name in modules if re.search(r"(^|\.)test_", name)]


def test_house_rules__no_test_imports_another() -> None:
    assert found_by(imported_tests) == {}


def test_imported_tests__relative_absolute_and_whole_modules() -> None:
    text = (
        "from .test_a import b\nfrom tests.unit import test_c\nimport test_d\nfrom x import tests\n"
    )
    assert imported_tests("", text) == ["test_a", "test_c", "test_d"]


def test_house_rules__a_class_has_a_name_of_its_own_in_the_package() -> None:
    """A reader who searches for it finds one; classes of one module, with an underscore, are left out."""
    where: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(), re.MULTILINE):
            where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert len(where) > 300
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_house_rules__a_fake_has_a_name_of_its_own_in_the_tests() -> None:
    """Two that do the same are one helper, fake_*.py; two that differ are called by what they are for."""
    names = [
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *class (Fake\w*)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 40
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_house_rules__a_name_of_ours_in_kubernetes_is_written_once() -> None:
    """Labels, annotations, taints: whoever needs one imports it. Versions belong to an interface each."""
    names = [name for found in found_by(our_names).values() for name in found]
    assert len(names) > 5
    assert {name: count for name, count in Counter(names).items() if count > 1} == {}


def our_names(_: str, text: str) -> list[str]:
    """Names of ours in the strings of a module, beside its docstrings."""
    described = {
        node.value
        for node in nodes(text)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    strings = [
        str(node.value)
        for node in nodes(text)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        if node not in described
    ]
    return re.findall(r"kcover\.io/(?!v\d)[a-z][a-z0-9/-]+", "\n".join(strings))


def snake(name: str) -> str:
    """`MetricsServer` as metrics_server."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower().strip("_")


def names_in(text: str) -> Iterator[str]:
    """Each function, class and module that a file names."""
    for node in nodes(text):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name
            case ast.alias(name=path):
                yield from path.split(".")
            case ast.ImportFrom(module=str(path)):
                yield from path.split(".")


def without_unit(name: str, text: str) -> list[str]:
    """The tests of a file that do not begin with what they test: the file's subject, or what it uses."""
    units = {snake(other_text) for other_text in names_in(text)} | {
        Path(name).stem.removeprefix("test_")
    }
    module = nodes(text)[0]
    assert isinstance(module, ast.Module)
    functions = [
        statement.name for statement in module.body if isinstance(statement, ast.FunctionDef)
    ]
    tests = [
        function.removeprefix("test_") for function in functions if function.startswith("test_")
    ]
    return [test for test in tests if test.partition("__")[0] not in units]


def test_house_rules__a_test_begins_with_what_it_tests() -> None:
    """Pytest prints the name alone; in the other trees it is a scenario of the whole product."""
    assert found_by(without_unit) == {}


OF_TESTS: tuple[Rule, ...] = (cannot_fail, may_check_nothing, limits_of_clocks, imported_tests)
"""Rules for the tests of every tree."""


def test_without_unit__a_class_a_function_a_file_and_a_sentence() -> None:
    text = "from kcover_ebpf.cli import main\nMetricsServer()\n" + "".join(
        f"def test_{name}(): ...\n"
        for name in ("metrics_server__ends", "main", "ports__one", "a_port_is_found")
    )
    assert without_unit("test_ports.py", text) == ["a_port_is_found"]
