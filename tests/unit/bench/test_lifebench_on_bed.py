"""The library of life on a test bed: what Incidents said as lines, the Job of a phase, and which phases it has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.lifebench.bed_job import exit_codes, manifest, start_command
from bench.lifebench.bed_watch import Said, has_ended, line_of
from bench.lifebench.on_bed import PROVIDED, main, on_nodes
from bench.lifebench.phase import Phase
from bench.lifebench.results import row_of

PHASE = Phase("judge", "service", "asks", "asks.py", 60.0, hosts=2, needs=("torch",))
INDEX = "batch.kubernetes.io/job-completion-index"


def incident(**status: Any) -> dict[str, Any]:
    return {"phase": "Open", "verdict": "HUNG", "cause": "blocked_lock", **status}


def test_line_of__a_status_is_what_a_sensor_would_have_said() -> None:
    status = incident(
        certainty="inferred",
        actsAt="2026-01-01T00:00:10Z",
        actsWhy="little is known",
        graph=["rank 1 -> rank 0"],
        evidence=[{"kind": "time", "text": "no progress"}],
        culprit={"rank": 0},
    )
    events = [
        {"event": "phase_begin", "unix": 1767225580.0},
        {"event": "phase_end", "unix": 1767225600.0},
    ]
    row = row_of(PHASE, 0, events, [(0, [line_of(status, 1767225583.0)]), (0, [])])
    (verdict,) = row.verdicts
    assert (verdict.verdict, verdict.certainty, verdict.after_s) == ("HUNG", "inferred", 3.0)
    assert (verdict.acts_s, verdict.acts_why) == (30.0, "little is known")
    assert (verdict.graph, verdict.text) == (("rank 1 -> rank 0",), "no progress")
    assert row.reported
    assert not row.ended


def test_line_of__an_incident_without_a_verdict_is_unknown() -> None:
    assert line_of({"phase": "Open"}, 1.0)["verdict"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (incident(), False),
        (incident(phase="Observed"), False),
        (incident(phase="Recovered"), False),
        (incident(phase="ShuttingDown"), True),
        (incident(phase="Refused"), True),
        (incident(phase="Recovered", timeline=[{"phase": "ShuttingDown"}]), True),
        (incident(phase="Recovered", restarts=[{"way": "InPlace"}]), True),
    ],
)
def test_has_ended__whoever_was_restarted_or_would_have_been(
    status: dict[str, Any], ended: bool
) -> None:
    assert has_ended(status) is ended


def test_said__each_change_is_one_line_of_its_namespace() -> None:
    said = Said()
    metadata = {"uid": "u", "namespace": "a", "name": "i"}
    said.take(metadata, {}, 0.5)
    for now_s, status in enumerate((incident(), incident(), incident(certainty="suspected"))):
        said.take(metadata, status, float(now_s))
    said.take({**metadata, "uid": "v", "namespace": "b"}, incident(phase="ShuttingDown"), 5.0)
    assert [line["time"] for line in said.lines("a")] == [0.0, 2.0]
    assert (said.has_ended("a"), said.has_ended("b")) == (False, True)


def test_start_command__the_ranks_of_a_pod_follow_those_of_the_pods_before_it() -> None:
    text = start_command(PHASE, ["python3", "asks.py", "judge"])
    assert "--ranks 2 --first $((2 * JOB_COMPLETION_INDEX)) --world 4 -- python3 asks.py" in text


def test_manifest__a_labelled_job_of_two_pods_that_share_no_node(tmp_path: Any) -> None:
    _, job = json.loads(manifest(PHASE, ["a"], tmp_path, {"LIFE_ADDRESS": "10.0.0.1"}))["items"]
    template = job["spec"]["template"]
    assert template["metadata"]["labels"]["kcover.io/cascading-recovery"] == "true"
    (rule,) = template["spec"]["affinity"]["podAntiAffinity"].popitem()[1]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert job["spec"]["completions"] == 2
    (container,) = template["spec"]["containers"]
    assert container["securityContext"]["capabilities"]["add"] == []
    mounts = {mount["mountPath"]: mount["readOnly"] for mount in container["volumeMounts"]}
    assert mounts[str(tmp_path)] is False


def test_exit_codes__a_host_has_none_while_it_runs() -> None:
    def pod(host: int, state: dict[str, Any]) -> dict[str, Any]:
        statuses = [{"state": state}]
        return {
            "metadata": {"annotations": {INDEX: str(host)}},
            "status": {"containerStatuses": statuses},
        }

    pods = [pod(1, {"terminated": {"exitCode": 3}}), pod(0, {"running": {}})]
    assert exit_codes(pods, 2) == [None, 3]


def test_on_nodes__twenty_phases_and_more_have_two_hosts_and_need_what_a_pod_has() -> None:
    phases = [phase for _, phase in on_nodes("")]
    assert len(phases) >= 20
    assert all(phase.hosts == 2 and set(phase.needs) <= PROVIDED for phase in phases)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--minutes", "0"]])
def test_main__a_wrong_number_is_bad_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_main__nothing_to_run_is_bad_usage(tmp_path: Any, capsys: Any) -> None:
    assert main(["--only", "no-such", "--out", str(tmp_path)]) == 2
    assert "--list" in capsys.readouterr().err
