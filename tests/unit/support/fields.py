"""Which dataclass fields a tree of source files fills, and which it reads. By names and annotations, no types.

A read `x.field` counts for the classes that `x` is annotated with where x is a parameter, for the class itself
where x is `self`, and for the classes of a `case` that `x` matched; anywhere else it counts for every class with a
field of that name. So a field can escape whose name another class reads as well; none is reported that is used. A
mirror of a record of the kernel (a `ctypes.Structure`) is a class as well: what is read of it is not read of the fact
that it becomes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ANY = "*"


@dataclass
class Record:
    """A dataclass as its source declares it, its fields in order."""

    module: str
    name: str
    frozen: bool
    fields: tuple[str, ...]
    bases: tuple[str, ...] = ()
    """Names of the classes whose fields it has as well; those are given by keyword."""


@dataclass
class Uses:
    """(class, field) pairs; the class is `ANY` where it cannot be known."""

    filled: set[tuple[str, str]] = field(default_factory=set)
    read: set[tuple[str, str]] = field(default_factory=set)


def records(sources: Mapping[str, ast.Module]) -> list[Record]:
    """Every dataclass of these modules."""
    return [
        Record(module, node.name, _is_frozen(node), tuple(_fields(node)), _names(node.bases))
        for module, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and _is_dataclass(node)
    ]


def parse(package: Path) -> dict[str, ast.Module]:
    """Modules of a package by dotted name below it."""
    return {
        ".".join(path.relative_to(package).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(package.rglob("*.py"))
    }


def uses(sources: Iterable[ast.Module], known: Iterable[Record]) -> Uses:
    """What these modules fill and read of the known classes."""
    found = Uses()
    by_name: dict[str, list[Record]] = defaultdict(list)
    for record in known:
        by_name[record.name].append(record)
    trees = list(sources)
    classes = frozenset(by_name) | frozenset(_mirrors(trees))
    for tree in trees:
        _Visitor(by_name, classes, found).visit(tree)
    return found


def unused(record: Record, pairs: set[tuple[str, str]]) -> list[str]:
    """Fields of the record that are in none of the pairs."""
    owners = (record.name, ANY)
    return [name for name in record.fields if not any((owner, name) in pairs for owner in owners)]


def _mirrors(trees: Iterable[ast.Module]) -> Iterator[str]:
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "Structure" in map(_last, node.bases):
                yield node.name


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(expression) for expression in node.decorator_list)


def _is_frozen(node: ast.ClassDef) -> bool:
    return any("frozen=True" in ast.unparse(expression) for expression in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _last(node: ast.expr) -> str:
    """`replace` of `dataclasses.replace`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names(nodes: Iterable[ast.AST]) -> tuple[str, ...]:
    """All names in these expressions, so also each part of a union; in text annotations too."""
    return tuple(
        other_node.id if isinstance(other_node, ast.Name) else other_node.attr
        for node in nodes
        for other_node in ast.walk(node)
        if isinstance(other_node, ast.Name | ast.Attribute)
    )


def _alternatives(annotation: ast.expr | None) -> tuple[str, ...]:
    """`A`, `B` of `A | module.B | None`; a name of no class where it is anything else."""
    match annotation:
        case None:
            return ()
        case ast.Constant(value=None):
            return ()
        case ast.BinOp(left=left, right=right):
            return (*_alternatives(left), *_alternatives(right))
        case ast.Name() | ast.Attribute():
            return (_last(annotation),)
        case _:
            return ("",)


def _matched(pattern: ast.pattern) -> tuple[str, ...]:
    """`A`, `B` of `A(...) | module.B() as x`; empty where it may match anything else."""
    match pattern:
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return _matched(inner)
        case ast.MatchOr(patterns=several):
            found = [_matched(item) for item in several]
            return tuple(name for pair in found for name in pair) if all(found) else ()
        case ast.MatchClass(cls=cls):
            return (_last(cls),)
        case _:
            return ()


class _Visitor(ast.NodeVisitor):
    def __init__(
        self, by_name: Mapping[str, list[Record]], classes: frozenset[str], found: Uses
    ) -> None:
        self._by_name, self._classes_known, self._found = by_name, classes, found
        self._scopes: list[dict[str, tuple[str, ...]]] = [{}]
        self._classes: list[tuple[str, ...]] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._classes.append((node.name, *_names(node.bases)))
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        scope = dict(self._scopes[-1])
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        for argument in arguments:
            scope[argument.arg] = self._known(argument.annotation)
        is_method = bool(self._classes) and bool(arguments) and arguments[0].arg == "self"
        if is_method:
            scope["self"] = self._classes[-1]
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owners: tuple[str, ...] = (ANY,)
        if isinstance(node.value, ast.Name):
            owners = self._scopes[-1].get(node.value.id) or (ANY,)
            owners += tuple(base for owner in owners for base in self._bases(owner))
        if isinstance(node.ctx, ast.Load):
            self._found.read.update((owner, node.attr) for owner in owners)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = _last(node.func)
        if called == "replace":
            self._found.filled.update(
                (ANY, keyword.arg) for keyword in node.keywords if keyword.arg
            )
        elif called == "partial" and node.args:
            self._fill(_last(node.args[0]), node.args[1:], node.keywords)
        elif called == "__setattr__" and self._classes and len(node.args) == 3:
            self._found.filled.add((self._classes[-1][0], str(getattr(node.args[1], "value", ""))))
        elif called == "cls" and self._classes:
            self._fill(self._classes[-1][0], node.args, node.keywords)
        else:
            self._fill(called, node.args, node.keywords)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            names = _matched(case.pattern)
            known = names if names and all(name in self._classes_known for name in names) else ()
            scope = dict(self._scopes[-1])
            for bound in (node.subject, case.pattern):
                if isinstance(bound, ast.Name):
                    scope[bound.id] = known or scope.get(bound.id, ())
                elif isinstance(bound, ast.MatchAs) and bound.name:
                    scope[bound.name] = known
            self._scopes.append(scope)
            self.generic_visit(case)
            self._scopes.pop()

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        self._found.read.update((_last(node.cls), name) for name in node.kwd_attrs)
        self.generic_visit(node)

    def _fill(self, called: str, args: list[ast.expr], keywords: list[ast.keyword]) -> None:
        for record in self._by_name.get(called, ()):
            names = list(record.fields)
            starred = any(isinstance(arg, ast.Starred) for arg in args)
            if starred or any(keyword.arg is None for keyword in keywords):
                self._found.filled.update((record.name, name) for name in names)
                inherited = (
                    other_record
                    for base in record.bases
                    for other_record in self._by_name.get(base, ())
                )
                self._found.filled.update(
                    (other_record.name, name)
                    for other_record in inherited
                    for name in other_record.fields
                )
            given = [*names[: len(args)], *(keyword.arg for keyword in keywords if keyword.arg)]
            owners = (record.name, *record.bases)
            self._found.filled.update((owner, name) for owner in owners for name in given)

    def _bases(self, name: str) -> tuple[str, ...]:
        return tuple(base for record in self._by_name.get(name, ()) for base in record.bases)

    def _known(self, annotation: ast.expr | None) -> tuple[str, ...]:
        """The classes an annotation names, also of a module; empty where it names anything that could hold more."""
        names = _alternatives(annotation)
        return names if all(name in self._classes_known for name in names) else ()
