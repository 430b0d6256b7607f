"""Output of long work that a fixture starts, while it continues: pytest would keep it until something fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def shown(config: pytest.Config) -> Iterator[None]:
    """What is written in this block, by programs too, appears at once."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:  # pytest -p no:capture
        yield
        return
    with capture.global_and_fixture_disabled():
        print(flush=True)
        yield
