"""What the programs do alike at their start."""

from __future__ import annotations

import sys
import threading

import pytest

from kcover_ebpf.watching import start


def test_start__modules_are_imported_while_programs_are_loaded_and_the_thread_has_ended_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Privileges belong to threads: one that still ran would keep those that are dropped next."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = set(threading.enumerate())
    with start._imported_meanwhile("kcover_ebpf.no_such_module", "colorsys"):
        pass
    assert set(threading.enumerate()) == before
    assert "colorsys" in sys.modules


def test_start__the_thread_has_ended_also_where_programs_cannot_be_loaded() -> None:
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="refused"), start._imported_meanwhile("colorsys"):
        raise OSError("refused")
    assert set(threading.enumerate()) == before
