"""A plug-in, and the cluster that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.fake_cluster import FakeCluster, Plugin
from tests.unit.support.fake_api_server import serving
from tests.unit.support.kubeconfigs import kubeconfig


@pytest.fixture
def plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Plugin]:
    cluster = FakeCluster()
    with serving(cluster.answer) as server:
        yield Plugin(cluster, kubeconfig(tmp_path, server.url), capsys)
