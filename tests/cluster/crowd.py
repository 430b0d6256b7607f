"""Scenarios that run at the same time, each in its own namespace, under one controller, as jobs of a cluster do.

A scenario waits most of its time: for a rank that starts, for a clock, for a kubelet. Side by side they take a
fraction of it, and show that a restart leaves the jobs beside it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.driver.cluster import Cluster, Namespace, made, titled
from testbed.driver.nodes import all_uncordoned
from testbed.driver.restarts import Program, running

Body = Callable[[Namespace], None]
AT_ONCE = 3
"""As many as two cores carry, where each rank needs two seconds of one of them to start."""


@dataclass(frozen=True)
class Scenario:
    """What is done in a namespace."""

    body: Body
    brings_controller: bool = False
    """The controller of the crowd leaves its namespace alone."""


class Book(dict[str, Scenario]):
    """The scenarios of a module by name, in the order in which they begin."""

    def scenario(self, *, brings_controller: bool = False) -> Callable[[Body], Body]:
        """Put a function into the book."""

        def put(body: Body) -> Body:
            self[body.__name__] = Scenario(body, brings_controller)
            return body

        return put


def asked_for(request: pytest.FixtureRequest) -> list[str]:
    """The scenarios of a module that this run selected: the values of the parameter `scenario`."""
    return [
        str(item.callspec.params["scenario"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
        and "scenario" in item.callspec.params
    ]


@dataclass(frozen=True)
class Crowd:
    """Scenarios under way."""

    namespaces: Mapping[str, Namespace]
    futures: Mapping[str, Future[None]]
    program: Program | None

    def assert_passes(self, scenario: str) -> None:
        """Until it is over; raises what it raised, with what the controller said about it."""
        try:
            self.futures[scenario].result()
        except Exception as error:
            name = self.namespaces[scenario].name
            log = self.program.log.splitlines() if self.program else []
            error.add_note("\n".join(["the controller:", *(line for line in log if name in line)]))
            raise


@contextmanager
def crowd(
    cluster: Cluster, scenarios: Mapping[str, Scenario], folder: Path, at_once: int = AT_ONCE
) -> Iterator[Crowd]:
    """Run them; those that have not begun by the end of the block never do."""
    with ExitStack() as stack:
        stack.enter_context(all_uncordoned(cluster))
        spaces = {name: titled(cluster, name) for name in scenarios}
        watched = [
            spaces[name] for name, scenario in scenarios.items() if not scenario.brings_controller
        ]
        program = None
        if watched:
            log = folder / "controller.log"
            home = stack.enter_context(made(titled(cluster, "crowd")))
            program = stack.enter_context(running(home, log, others=watched))
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="scenario")
        stack.callback(pool.shutdown, cancel_futures=True)
        futures = {
            name: pool.submit(_in_namespace, scenario.body, spaces[name])
            for name, scenario in scenarios.items()
        }
        yield Crowd(spaces, futures, program)


def _in_namespace(body: Body, namespace: Namespace) -> None:
    with made(namespace):
        body(namespace)
