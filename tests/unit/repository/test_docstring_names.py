"""Docstrings of the package: dotted names between backticks exist, and few of them are mere fragments."""

import ast
import re
import symtable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "kcover_ebpf"
TEXTS = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
}
DEFINED = {
    f"{module.removesuffix('.__init__')}.{symbol.get_name()}": symbol
    for module, text in TEXTS.items()
    for symbol in symtable.symtable(text, module, "exec").get_symbols()
}
PLACES = {part for module in TEXTS for part in module.split(".")}
THINGS = {symbol.get_name() for symbol in DEFINED.values() if symbol.is_namespace()} - PLACES
"""Functions and classes."""
NAMES = [f".{name}" for name in (*TEXTS, *DEFINED)]

MAY_BE_SHORT = 190
"""Fewer docstrings than this may have five words or fewer: most of these say nothing that the name does not."""
SHORT = 5


def docstrings(tree: ast.Module) -> list[str]:
    """Those of modules, classes and functions, and strings after an assignment, which describe its variable."""
    found: list[str] = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        preceding = [None, *body]
        for before, statement in zip(preceding, body, strict=False):
            describes = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if describes:
                    found.append(text)
    return found


def test_docstrings__few_are_fragments() -> None:
    texts = [text for module in TEXTS.values() for text in docstrings(ast.parse(module))]
    short = [text for text in texts if len(text.split()) <= SHORT]
    assert len(texts) > 5000
    assert len(short) < MAY_BE_SHORT


def test_docstrings__of_a_module_a_function_and_a_variable() -> None:
    text = '"""m"""\nx = 1\n"""v"""\ndef f() -> None:\n    """f"""\n    g()\n    "no docstring"\n'
    assert docstrings(ast.parse(text)) == ["m", "v", "f"]


def dangling(text: str) -> list[str]:
    """Names that begin with a module or folder of ours, or end with a function or class, and lead nowhere."""
    constants = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    strings = "\n".join(constant.value for constant in constants if isinstance(constant.value, str))
    return [
        name
        for name in re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)`", strings)
        if name.partition(".")[0] in PLACES or name.rpartition(".")[2] in THINGS
        if not any(other_text.endswith(f".{name}") for other_text in NAMES)
    ]


def test_docstring_names__lead_to_something_that_exists() -> None:
    found = {module: names for module, text in TEXTS.items() if (names := dangling(text))}
    assert found == {}


def test_dangling__a_module_that_is_gone_and_a_function_that_moved() -> None:
    text = '"""`host.ending.send`, `kinds.selects`; `job_kinds.selects`, `host.procfs`, `a.b`."""'
    assert dangling(text) == ["host.ending.send", "kinds.selects"]
