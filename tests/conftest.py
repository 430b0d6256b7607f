"""Applies the skip policy of testbed/skips.py, and marks the tests by their folder."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

from testbed import skips

# how long an example takes says something about the machine only
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=100)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("quick")

# Whoever starts the tests may ignore these (nohup, a shell's &); the programs under test would inherit that.
for number, action in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)

# What `make test` runs of tests/cluster beside single tests that are marked.
CORE = {"test_testbed.py"}

pytest_runtest_setup = skips.pytest_runtest_setup

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        if folder == "kernel":
            item.add_marker(pytest.mark.kernel)
            item.add_marker(pytest.mark.needs("root", "bpf", "btf"))
        elif folder == "vm":
            item.add_marker(pytest.mark.vm)
        elif folder in {"cluster", "chart", "attack"}:
            item.add_marker(getattr(pytest.mark, folder))
            needed = {"cluster": ("root",), "chart": ("etcd", "go"), "attack": ("root", "bpf")}
            item.add_marker(pytest.mark.needs(*needed[folder]))
            if folder == "cluster" and item.path.name in CORE:
                item.add_marker(pytest.mark.core)
            # Of the test alone: the first one to ask for the cluster may have to build it.
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return report if hasattr(report, "wasxfail") else _judged(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))


def _judged(report: Report) -> Report:
    if report.skipped and skips.is_strict(os.environ) and isinstance(report.longrepr, tuple):
        expected = skips.expected_skips(skips.EXPECTED_SKIPS.read_text())
        failure = skips.failure(report.longrepr[2], expected)
        if failure is not None:
            report.outcome = "failed"
            report.longrepr = failure
    return report
