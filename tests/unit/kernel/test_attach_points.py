"""Tracepoints that a kernel has, and functions that the compiler renamed."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.kernel.attach_points import absent, variant, variants

KERNEL = b"\x9f\xeb\x01\0\0void\0btf_trace_console\0task_struct\0btf_trace_mc_event\0"
ADDRESS = "ffffffffc0a01230"


def _folder(at: Path, **modules: bytes) -> Path:
    at.joinpath("vmlinux").write_bytes(KERNEL)
    for name, content in modules.items():
        at.joinpath(name).write_bytes(content)
    return at


def test_absent__a_tracepoint_is_absent_where_neither_the_kernel_nor_a_module_has_it(
    tmp_path: Path,
) -> None:
    folder = _folder(tmp_path, mlx5=b"\0btf_trace_mlx5_event\0mlx5_core\0")
    asked = {"console", "mc_event", "mlx5_event", "mce_record", "console_write", "task_struct"}
    assert absent(asked, folder) == {"mce_record", "console_write", "task_struct"}


def test_absent__a_module_that_comes_brings_its_tracepoints(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert absent({"mlx5_event"}, folder) == {"mlx5_event"}
    folder.joinpath("mlx5").write_bytes(b"btf_trace_mlx5_event\0")
    assert not absent({"mlx5_event"}, folder)


def test_absent__nothing_is_called_absent_where_types_cannot_be_read(tmp_path: Path) -> None:
    assert not absent({"console"}, tmp_path / "nowhere")


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
