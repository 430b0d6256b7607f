"""A dotted name between backticks, in a docstring of the package, leads to something that exists."""

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
