"""The folder that an incident's archive is fetched into."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from kcover_ebpf.postmortem.fetch import PartSources, fetched, write_folder
from tests.unit.support import incident_archives as build


def test_write_folder__only_its_owner_may_read_what_was_fetched(tmp_path: Path) -> None:
    """It contains the ends of containers' logs."""
    no_client: Any = None
    archive = build.archive()
    incident, folder = archive.incident, tmp_path / "kept" / "train-1"
    assert incident is not None
    fetched(PartSources(no_client), incident, folder)
    write_folder(archive, folder)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert any(path.parent.name == "logs" for path in modes)
    assert {path: mode for path, mode in modes.items() if mode & 0o077} == {}
