"""Half of an upgrade, without nodes: an agent of one version with a controller of the other, by either's definitions.

Agent and controller are the real programs, with the accounts and the admission of this version's chart; the job's
controller and the kubelet are played. What a kubelet and a hang add is in `tests/cluster/test_upgrade.py`.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.driver.cluster import ROOT
from testbed.driver.control_plane import ControlPlane
from testbed.skips import PREVIOUS
from tests.chart.played_cluster import DEFINITIONS, install, plane, played, prepare, start
from tests.chart.played_job import NODE, PlayedJob, made, replaced, until
from tests.chart.release import FULLNAME

__all__ = ["plane", "played"]
pytestmark = [
    pytest.mark.needs("root", "bpf", "cgroup2", "previous"),
    pytest.mark.timeout(600, func_only=True),
]


def bodies(checkout: Path) -> list[dict[str, Any]]:
    """The definitions of a checkout."""
    files = sorted((checkout / "charts/kcover-ebpf/crds").glob("*.yaml"))
    return [body for file in files for body in yaml.safe_load_all(file.read_text())]


@pytest.mark.parametrize("definitions", ["old", "new"])
@pytest.mark.parametrize(("agent", "controller"), [("new", "old"), ("old", "new"), ("new", "new")])
def test_a_job_is_recovered(  # noqa: PLR0917 - one column of the table each
    plane: ControlPlane,
    played: PlayedJob,
    programs: dict[str, Path],
    tmp_path: Path,
    agent: str,
    controller: str,
    definitions: str,
) -> None:
    """It has lost a rank: reported, decided, ended, replaced, recovered."""
    checkouts = {"new": ROOT, "old": Path(os.environ[PREVIOUS])}
    prepare(plane)
    kept = bodies(checkouts[definitions])
    for body in kept:
        made(played.root.ask("POST", DEFINITIONS, body))
    installed = install(plane, programs)
    # helm installs definitions that are not there, and an upgrade does not
    names = {body["metadata"]["name"] for body in kept}
    for name in {body["metadata"]["name"] for body in bodies(ROOT)} - names:
        made(played.root.ask("DELETE", f"{DEFINITIONS}/{name}"))
    with ExitStack() as stack:
        logs = [
            start(
                stack,
                installed,
                tmp_path,
                component,
                *more,
                program=checkouts[version] / ".venv/bin/kcover-ebpf",
            )
            for component, version, more in (
                ("controller", controller, [f"--lease={FULLNAME}-controller"]),
                ("agent", agent, [f"--node={NODE}", f"--state-dir={tmp_path / 's'}"]),
            )
        ]
        try:
            played.make_job()
            played.make_pods("a")
            until(lambda: len(played.reported()) == 2, "the agent reports both pods")
            time.sleep(3.0)
            (rank,) = next(iter(played.pods.values())).pids()
            os.kill(rank, signal.SIGKILL)
            replaced(played)
        except AssertionError:
            print(*(log.read_text()[-3000:] for log in logs), sep="\n---\n")
            print(played.incident())
            raise
    assert played.phase() == "Recovered"
