"""A variable says the noun of its type, a loop variable what is looped over (CONTRIBUTING.md, Style)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "kcover_ebpf"
MODULES = sorted(
    path
    for tree in ("kcover_ebpf", "tests", "bench", "tools", "testbed")
    for path in (ROOT / tree).rglob("*.py")
)
MAY_BE_OFF = 42
"""Fewer annotated names than this may share no word with their class: keys of JSON that are fields, and roles."""
NAMELESS = {"each"}


def words(name: str) -> set[str]:
    """`RankSnapshot`, `rank_snapshots`: rank, snapshot; of a plural the singular as well."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    found = set(re.findall(r"[a-z0-9]+", snake))
    return found | {word.rstrip("s") for word in found}


def class_of(annotation: ast.expr | None, ours: set[str]) -> str | None:
    """The one class of ours that an annotation names, beside None."""
    match annotation:
        case ast.Constant(value=str(text)):
            return class_of(ast.parse(text, mode="eval").body, ours)
        case ast.BinOp(left=left, right=right):
            named = [name for side in (left, right) if (name := class_of(side, ours))]
            return named[0] if len(named) == 1 else None
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in ours:
            return name
    return None


def annotated(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    """Parameters, fields and variables, with their annotations."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=annotation):
                yield name, annotation
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name)):
                yield name, node.annotation


def off_type(tree: ast.Module, ours: set[str]) -> list[str]:
    """Annotated names that share no word with their class."""
    return [
        f"{name}: {kind}"
        for name, annotation in annotated(tree)
        if (kind := class_of(annotation, ours)) and not words(name) & words(kind)
    ]


def nameless(tree: ast.Module) -> list[str]:
    """Loop variables and parameters of a lambda that name nothing."""
    targets = [
        node.target
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
    ]
    names = [
        node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
    ]
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    names += [argument.arg for function in lambdas for argument in function.args.args]
    return [name for name in names if name in NAMELESS]


def test_off_type__few_names_share_no_word_with_their_class() -> None:
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    ours = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert len(ours) > 300
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees.items()
        for name in off_type(tree, ours)
    ]
    assert len(found) < MAY_BE_OFF, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("def f(turn: RestartContext): ...", ["turn: RestartContext"]),
        ("def f(context: RestartContext | None): ...", []),
        ("self._view: 'ProcessHistory' = x", ["_view: ProcessHistory"]),
        ("history: ProcessHistory", []),
        ("def f(turn: tuple[RestartContext, ...], name: str): ...", []),
    ],
)
def test_off_type__a_parameter_an_attribute_and_a_field(line: str, found: list[str]) -> None:
    assert off_type(ast.parse(line), {"RestartContext", "ProcessHistory"}) == found


def test_nameless__loops_name_what_they_go_over() -> None:
    found = {str(path.relative_to(ROOT)): nameless(ast.parse(path.read_text())) for path in MODULES}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("for each in ranks: ...", 1),
        ("[each for number, each in enumerate(ranks)]", 1),
        ("sorted(ranks, key=lambda each: each.pid)", 1),
        ("[rank for rank in ranks]", 0),
    ],
)
def test_nameless__loops_comprehensions_and_lambdas(line: str, count: int) -> None:
    assert len(nameless(ast.parse(line))) == count


def test_house_names__a_public_method_that_is_no_property_has_a_docstring() -> None:
    """Ruff's D102 knows no properties: the name of one can say it all."""
    missing = [
        f"{path.relative_to(ROOT)}: {node.name}.{method.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
        if not ast.get_docstring(method) and not is_exempt(method)
    ]
    assert missing == []


def is_exempt(method: ast.FunctionDef) -> bool:
    """Properties, and what another class documents."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in method.decorator_list}
    return bool(names & {"property", "override", "setter", "overload"})
