"""Functions that the compiler renamed."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.kernel.symbols import variant, variants

ADDRESS = "ffffffffc0a01230"


@pytest.mark.parametrize(
    ("symbol", "is_clone"),
    [
        ("nvidia_close.constprop.0", True),
        ("nvidia_close.isra.0", True),
        ("nvidia_close.isra.0.constprop.1", True),
        ("nvidia_close.lto_priv.0", True),
        ("nvidia_close.llvm.1234567", True),
        ("nvidia_close.cold", False),
        ("nvidia_close.part.0", False),
        ("nvidia_close.isra.0.cold", False),
        ("nvidia_close", False),
        ("nvidia_closed.constprop.0", False),
        ("x.nvidia_close.constprop.0", False),
    ],
)
def test_variants__clones(symbol, is_clone):
    lines = [f"{ADDRESS} t {symbol}\t[nvidia]", f"{ADDRESS} d nvidia_close.constprop.0\t[nvidia]"]
    assert variants("nvidia_close", lines) == ([symbol] if is_clone else [])


def test_variant__the_only_clone_is_taken(tmp_path):
    table = tmp_path / "kallsyms"
    table.write_text(
        f"{ADDRESS} t a.isra.0\t[m]\n{ADDRESS} t b.isra.0\n{ADDRESS} t b.constprop.0\n"
    )
    assert variant("a", table) == "a.isra.0"
    assert variant("b", table) is None
    assert variant("c", table) is None
    assert variant("a", tmp_path / "none") is None


@given(st.lists(st.text(max_size=40)))
@example(["", "0 t", "0 t f.isra.0", "0 t a.f.isra.0"])
def test_variants__no_line_breaks_the_search(lines):
    assert all(text.startswith("f") for text in variants("f", lines))
