"""The kept corpus of the fuzz targets is parsed again: what once crashed a parser never does again."""

from pathlib import Path

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.table import TARGETS
from tests.fuzz.target import CORPUS, Target, corpus, run

MOST_BYTES = 64 * 1024
"""Of all inputs of one target: they are in the repository."""
EVERY = TARGETS.values()


@pytest.mark.parametrize("target", EVERY, ids=TARGETS)
def test_fuzz_corpus__every_kept_input_is_parsed_or_refused(target: Target) -> None:
    inputs = corpus(target)
    assert inputs
    for path in inputs:
        run(target, path.read_bytes())


@pytest.mark.parametrize("target", EVERY, ids=TARGETS)
def test_fuzz_corpus__an_empty_input_and_one_of_any_bytes_are_parsed_or_refused(
    target: Target,
) -> None:
    for data in (b"", b"\0", bytes(range(256)), b"\n" * 100, b"[" * 5000, b'{"a":' * 2000):
        assert_parsed_or_refused(target, data)


def assert_parsed_or_refused(target: Target, data: bytes) -> None:
    """Raises what the target does not allow."""
    run(target, data)


def test_fuzz_corpus__no_corpus_is_without_its_target() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize("folder", sorted(CORPUS.iterdir()), ids=lambda folder: folder.name)
def test_fuzz_corpus__the_corpus_stays_small(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES


def test_fuzz_corpus__an_input_is_cut_to_the_bound_of_its_target() -> None:
    seen: list[bytes] = []
    run(Target("x", seen.append, 3), b"12345")
    assert seen == [b"123"]


def test_fuzz_corpus__an_exception_that_is_not_allowed_is_a_crash() -> None:
    target = Target("x", lambda data: {b"": 1}[data], 3, (ValueError,))
    with pytest.raises(KeyError):
        run(target, b"1")


def test_fuzz_corpus__a_tree_stays_json_whatever_is_changed_in_it() -> None:
    data = b'{"a": [1, "x", {"b": null}], "c": 2.5}'
    changed = {mutated(data, 1 << 20, seed, lambda raw: b"bytes") for seed in range(300)}
    assert b"bytes" in changed
    assert len(changed) > 100
    assert all(chunk == b"bytes" or chunk[:1] in b'{["-0123456789ntfNI' for chunk in changed)
