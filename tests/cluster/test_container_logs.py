"""A program with a bug in a real Job: classed by its log, restarted once, and not again, without text of its log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from testbed.driver.cluster import JOBS, Namespace, until
from testbed.driver.installed import Release
from testbed.driver.restarts import incidents

pytestmark = pytest.mark.timeout(900, func_only=True)
SECRET = "hf_9dK2secret"
PROGRAM = f"""\
import builtins, runpy
say = builtins.print
def fail(*words, **how):
    say(*words, **how)
    if "rank 1 step 20" in str(words[0]):
        raise ValueError("sample 20 of {SECRET}")
builtins.print = fail
runpy.run_path("/train/train.py", run_name="__main__")
"""


def job() -> str:
    """The example job, whose rank 1 fails at the same step whenever it is started."""
    text = (JOBS / "job.yaml").read_text()
    steps = '{name: STEP_SECONDS, value: "0.3"}, '
    changed = text.replace(
        "[python3, /train/train.py]", json.dumps(["python3", "-u", "-c", PROGRAM])
    ).replace("env: [", f"env: [{steps}")
    assert changed.count("hf_") == 1
    return changed


def known(namespace: Namespace, words: str) -> dict[str, Any] | None:
    """The status of the incident that says so."""
    found = (incident.get("status", {}) for incident in incidents(namespace))
    return next((item for item in found if words in item.get("message", "")), None)


def test_a_bug_is_classed_and_restarted_once(namespace: Namespace, release: Release) -> None:
    release.wait_until_ready()
    namespace.apply(job())
    ended = until(lambda: known(namespace, "a bug of the program"), "it is given up", 300)
    print(json.dumps([incident.get("status", {}) for incident in incidents(namespace)], indent=1))
    assert "the same traceback at train.py:" in ended["message"]
    assert "at step 20 as before the restart" in ended["message"]
    assert ended["class"] == "program"
    assert "log" in {item["kind"] for item in ended["evidence"]}
    until(lambda: known(namespace, "stays suspended until it is resumed by hand"), "it is stopped")
    (owner,) = namespace.get("jobs")
    assert owner["spec"]["suspend"] is True
    restarts = [
        one for incident in incidents(namespace) for one in incident["status"].get("restarts", ())
    ]
    assert len(restarts) == 1, "the first crash was restarted, the second one was not"
    seen = json.dumps([incidents(namespace), namespace.items("faultreports")])
    assert SECRET not in seen
    assert "sample 20" not in seen
    events = namespace.get("events")
    assert any("[program]" in event.get("message", "") for event in events)
    assert SECRET not in json.dumps(events)
