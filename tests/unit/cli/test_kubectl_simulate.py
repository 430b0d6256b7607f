"""`kubectl kcover simulate` and `kcover-ebpf simulate`: a changed policy on what has happened."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.api import incident, rfc3339
from kcover_ebpf.cli import kubectl, main
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.judged import judged
from tests.unit.support.kubeconfigs import kubeconfig
from tests.unit.support.past_incidents import STOPPED, of, restarted
from tests.unit.support.recorded_stage import TAPES

POLICY = """
apiVersion: kcover.io/v1alpha1
kind: FaultPolicy
metadata: {name: careful, namespace: ml}
spec: {action: Observe, selector: {matchLabels: {k: llm}}}
"""


def raw(name: str, **labels: str) -> dict[str, Any]:
    since_s = time.time() - 3600.0
    status = restarted(judged(STOPPED, since_s=since_s, acts_at_s=since_s + 5.0))
    made = replace(of(status, name), selector=labels)
    created = incident.object_of(made) | {"status": incident.status_of(status)}
    created["metadata"]["creationTimestamp"] = rfc3339.to_text(since_s)
    return created


def answer(request: Request) -> Answer:
    if request.path.endswith("/incidents"):
        return Answer(body={"items": [raw("a", k="llm"), raw("b", k="other")]})
    return Answer(404, {"message": "no"})


def asked(folder: Path, *words: str, text: str = POLICY) -> int:
    file = folder / "policy.yaml"
    file.write_text(text)
    with serving(answer) as server:
        config = kubeconfig(folder, server.url)
        call = ["simulate", "--policy", str(file), "-n", "ml", "--kubeconfig", config, *words]
        return kubectl.main(call)


def test_kubectl_simulate__says_what_the_policy_would_have_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path) == 0
    out = capsys.readouterr().out
    assert "1 incidents in 30d 00h, 1 of them changed; 1 of other policies left out" in out
    row = next(line for line in out.splitlines() if line.startswith("ml/a "))
    assert re.split(" {3,}", row)[1:] == [
        "HUNG stopped",
        "ended after 5.0s",
        "not ended",
        "would not be ended",
    ]
    assert "the policy allows Observe only" in out


def test_kubectl_simulate__json_has_incidents_and_tapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POLICY.replace("action: Observe", "thresholds: {stopped: 30s}")
    words = ["-o", "json", "--since", "1d", "--tape", str(TAPES)]
    assert asked(tmp_path, *words, text=text) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["difference"] for one in found["items"]] == ["later"]
    by_tape = {one["tape"]: one["difference"] for one in found["tapes"]}
    assert by_tape["stopped.tape.gz"] == "would not be ended"
    assert by_tape["healthy.tape.gz"] == by_tape["crashed.tape.gz"] == "same"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid YAML"),
        ("kind: Pod", "contains no FaultPolicy"),
        (POLICY.replace("Observe", "Sometimes"), "Sometimes"),
    ],
)
def test_kubectl_simulate__what_is_no_policy_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    assert asked(tmp_path, text=text) == 2
    assert said in capsys.readouterr().err


def test_kubectl_simulate__a_tape_is_judged_with_both_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('stopped = "30s"\n')
    assert main(["simulate", "--policy", str(policy), str(TAPES / "stopped.tape.gz")]) == 0
    assert "ended after 32 s   not ended          would not be ended" in capsys.readouterr().out
    assert main(["simulate", "--policy", str(policy), "-o", "json", str(TAPES)]) == 0
    tapes = json.loads(capsys.readouterr().out)["tapes"]
    assert [one["tape"] for one in tapes if one["difference"] != "same"] == ["stopped.tape.gz"]
    assert main(["simulate", "--policy", str(policy), str(tmp_path)]) == 2
    assert "no tape in" in capsys.readouterr().err
