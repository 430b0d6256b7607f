"""The service to which a job with background work sends telemetry: outside of the job, on another machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.faultbench.job import LAUNCH, ROOT, TAG_VARIABLE, tag_value
from bench.faultbench.live import Live
from testbed.ports import free_port
from testbed.workloads import network
from testbed.workloads.launch import network_members

SPACE_LIMIT_S = 30.0


class RunCollector:
    """Where the collector of a run is; it ends with everything else that has the run's tag."""

    def __init__(self, live: Live) -> None:
        self._live, self._port = live, free_port()
        run = live.run
        self._member = network_members(run.framework, run.world) if run.scenario.netns else None

    @property
    def host(self) -> str:
        """Its address: that of a separate machine, where these have one each."""
        return "127.0.0.1" if self._member is None else network.address(self._member)

    @property
    def address(self) -> str:
        """HOST:PORT; the ranks may ask before it is there."""
        return f"{self.host}:{self._port}"

    def start(self) -> None:
        """Start it, once the launcher has made the network; raises RunFailed if it does not."""
        live, place = self._live, []
        if self._member is not None:
            space = Path("/run/netns", network.name(live.tag, self._member))
            live.wait_for(space.exists, SPACE_LIMIT_S, f"the namespace {space.name}")
            place = network.inside(live.tag, self._member)
        python = LAUNCH[0]
        command = [*place, python, "-m", "testbed.workloads.background", "collect"]
        variables = {**os.environ, TAG_VARIABLE: tag_value(live.tag), "PYTHONPATH": str(ROOT)}
        with open(live.folder / "collector.log", "w") as log:
            subprocess.Popen(
                [*command, self.host, str(self._port)],
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
