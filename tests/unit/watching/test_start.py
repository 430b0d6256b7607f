"""What a program does beside its imports at the start."""

from __future__ import annotations

import threading

import pytest

from kcover_ebpf.watching.start import _beside


def test_beside__what_was_made_in_the_thread_is_there_after_the_block() -> None:
    begun = threading.Event()

    def make() -> int:
        begun.wait()
        return threading.get_ident()

    with _beside(make) as made:
        begun.set()
    assert made() != threading.get_ident()
    assert threading.active_count() == 1 or all(
        thread.ident != made() for thread in threading.enumerate()
    ), "no thread is left, for privileges belong to threads"


def test_beside__an_error_of_the_thread_is_raised_where_it_is_asked_for() -> None:
    def fail() -> int:
        raise OSError(1, "refused")

    with _beside(fail) as made:
        pass
    with pytest.raises(OSError, match="refused"):
        made()


def test_beside__an_error_of_the_block_waits_for_the_thread() -> None:
    ended = []
    with pytest.raises(ImportError), _beside(lambda: ended.append(True)):
        raise ImportError("missing")
    assert ended == [True]
