"""`kcover-ebpf inspect`: its shape, its exit codes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcover_ebpf import cli
from kcover_ebpf.inspection.registry import CHECKS, chosen
from kcover_ebpf.inspection.result import Cost
from tests.unit.support.inspection_hosts import tool


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["inspect", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_main__the_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")
    tool(tmp_path, "good", "echo fine")
    tool(tmp_path, "bad", "echo broken; exit 1")
    names = "plugin/bad,plugin/good,memory"
    code, out, err = run(capsys, "-o", "json", "--plugins", str(tmp_path), "--checks", names)
    assert (code, err, out.count("\n")) == (1, "", 1)
    answer = json.loads(out)
    assert list(answer) == ["schema", "node", "time", "result", "checks"]
    assert (answer["schema"], answer["node"]) == ("kcover.io/v1alpha1", "node-7")
    assert answer["result"] == "fail"
    assert [check["name"] for check in answer["checks"]] == names.split(",")
    first = answer["checks"][0]
    assert list(first) == ["name", "result", "cost", "seconds", "evidence", "advice"]
    assert (first["result"], first["cost"], first["evidence"]) == ("fail", "light", ["broken"])
    assert first["advice"]


def test_main__the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tool(tmp_path, "good", "printf 'fine \\033[2J\\n'")
    code, out, _ = run(capsys, "--plugins", str(tmp_path), "--checks", "plugin/good")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["CHECK", "RESULT", "SECONDS", "EVIDENCE"]
    assert lines[1].split()[:2] == ["plugin/good", "pass"]
    assert lines[1].endswith("fine \\x1b[2J")
    assert lines[-1].endswith(": pass")


def test_main__nothing_observed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tool(tmp_path, "odd", "exit 5")
    code, out, err = run(capsys, "--plugins", str(tmp_path), "--checks", "plugin/odd")
    assert code == 3
    assert out.splitlines()[-1].endswith(": unknown")
    assert "no check could observe anything" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--checks memroy", "no check is named 'memroy'; there are: nvml, "),
        ("--checks ,", "--checks needs the name of a check"),
        ("--checks peers", "--peer HOST:PORT"),
        ("--peer node-2", "the peer 'node-2' is not HOST:PORT"),
        ("--peer node-2:0", "is not HOST:PORT"),
        ("--peer :80", "is not HOST:PORT"),
        ("--peer [::1:80", "is not HOST:PORT"),
        ("--peer ::1:80", "is not HOST:PORT"),
        ("--peer node-2:\u0663", "is not HOST:PORT"),
        (f"--peer node-2:{'9' * 5000}", "is not HOST:PORT"),
        ("--plugins /no/such/folder", "cannot read the plug-ins"),
        ("--write-to /no/such/folder", "does not exist"),
        ("-o yaml", "'yaml' is not one of"),
        ("extra", "unexpected extra argument"),
    ],
)
def test_main__wrong_usage(capsys: pytest.CaptureFixture[str], arguments: str, words: str) -> None:
    code, out, err = run(capsys, *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_chosen__what_is_chosen() -> None:
    light = chosen((), (), has_peers=False)
    assert all(check.cost is Cost.LIGHT for check in light)
    assert {check.name for check in CHECKS} - {check.name for check in light} == {"peers"}
    assert "peers" in [check.name for check in chosen((), (), has_peers=True)]
    assert [check.name for check in chosen(["clock", "nvml", "clock"], (), has_peers=False)] == [
        "clock",
        "nvml",
    ]
