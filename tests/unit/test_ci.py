"""The files for forges run our make targets, and fetch only what is pinned."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FORGES = [ROOT / ".github/workflows/ci.yml", ROOT / ".gitlab-ci.yml"]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def strings(value: Any) -> Iterator[str]:
    """Every string in a document."""
    if isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("file", FORGES, ids=lambda file: file.name)
def test_ci__forges_run_the_same_targets(file: Path) -> None:
    commands = strings(yaml.safe_load(file.read_text()))
    run = {each.removeprefix("make ") for each in commands if each.startswith("make ")}
    assert run == {"check", "docs", "test", "test-wheel", "release"}
    assert run <= TARGETS


def test_ci__actions_are_pinned_by_their_commit() -> None:
    used = re.findall(r"uses: (\S+)", FORGES[0].read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []
