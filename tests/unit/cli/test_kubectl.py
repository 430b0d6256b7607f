"""`kubectl kcover` against a server that keeps a few objects: what it prints, changes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcover_ebpf.api import rfc3339
from kcover_ebpf.cli import kubectl
from kcover_ebpf.recovery.nodes.node_plan import CLEARED, CORDONED, CORDONED_BY
from tests.unit.cli.fake_cluster import GROUP, FakeCluster, Plugin
from tests.unit.support.fake_api_server import Answer, serving
from tests.unit.support.kubeconfigs import kubeconfig


def test_kubectl__help_describes_each_command_in_full(plugin: Plugin) -> None:
    assert kubectl.main(["--help"]) == 0
    text = plugin.capsys.readouterr().out
    assert "Switch the dry run of a FaultPolicy on or off; if it does not" in text
    assert "..." not in text.split("Commands:")[1]


def test_kubectl__a_list_has_a_line_for_each_incident_the_newest_last(plugin: Plugin) -> None:
    plugin.cluster.put("default", "llm-b", age_s=10.0)
    plugin.cluster.put("default", "llm-a", age_s=900.0)
    plugin.cluster.put("other", "llm-c")
    code, out, _ = plugin("list")
    head, first, second = out.splitlines()
    assert code == 0
    assert head.split() == list(kubectl._COLUMNS)
    assert first.split()[:7] == ["llm", "PyTorchJob", "HUNG", "llm-2", "n7", "stopped", "Decided"]
    assert (first.split()[-1], second.split()[-1]) == ("llm-a", "llm-b")


def test_kubectl__a_list_of_all_namespaces_names_them(plugin: Plugin) -> None:
    plugin.cluster.put("ml", "llm-a")
    plugin.cluster.put("other", "llm-c")
    out = plugin("list", "-A")[1].splitlines()
    assert [line.split()[0] for line in out] == ["NAMESPACE", "ml", "other"]


def test_kubectl__a_list_of_nothing_says_so(plugin: Plugin) -> None:
    assert plugin("list", "-n", "empty") == (0, "no incidents in namespace empty\n", "")


def test_kubectl__a_list_as_json_is_what_the_server_has(plugin: Plugin) -> None:
    plugin.cluster.put("default", "llm-a")
    found = json.loads(plugin("list", "-o", "json")[1])
    assert [item["metadata"]["name"] for item in found["items"]] == ["llm-a"]


def test_kubectl__an_incident_is_explained(plugin: Plugin) -> None:
    plugin.cluster.put("ml", "llm-a")
    code, out, _ = plugin("explain", "llm-a", "-n", "ml")
    assert code == 0
    stopped = "find out what stopped rank 2 (pid 77, pod llm-2, node n7)"
    assert out.splitlines() == [
        "PyTorchJob ml/llm",
        "  Decided: HUNG stopped, rank 2 in pod llm-2 on n7",
        "  still so: yes, as far as the nodes report: this incident is open",
        f"  next: {stopped}, then resume it, as root on its host: kill -CONT 77",
        "  culprit: rank 2, pod llm-2, node n7, pid 77",
        "  owner: not known; the label kcover.io/owner of the job names one",
        "  cause: The cause lies in the infrastructure (storage), not in the program.",
        "  why, as it was found:",
        "    - all other ranks wait [peers]",
        "    the framework would have waited until 2027-01-15T08:00:00Z (1157d 09h more)",
        "      ranks 0, 1, 3 -> collective -> rank 2 -> the process that stopped it",
        "      no work: rank 4 sleeps as it always did",
        "    proven: an armed job is ended at 2023-11-14T22:13:25Z if nothing moves: stopped for 5 s",
        "    not observed: node n9: no report",
        "  what happened, counted from when the fault began:",
        "        +0.0 s  Open          seen",
        "        +1.5 s  Decided       HUNG stopped, rank 2 in pod llm-2 on n7",
        "  time lost: 2.6 s",
    ]


def test_kubectl__an_explanation_says_why_a_suspicion_ends_no_job(plugin: Plugin) -> None:
    plugin.cluster.put("ml", "llm-a")
    status = plugin.cluster.objects[f"{GROUP}/namespaces/ml/incidents/llm-a"]["status"]
    del status["actsAt"]
    status |= {"certainty": "suspected", "actsWhy": "it computes, which may end by itself"}
    said = plugin("explain", "llm-a", "-n", "ml")[1].splitlines()
    assert "    suspected: it computes, which may end by itself" in said


def test_kubectl__times_of_an_incident_count_from_when_its_fault_began(plugin: Plugin) -> None:
    plugin.cluster.put("ml", "llm-a")
    status = plugin.cluster.objects[f"{GROUP}/namespaces/ml/incidents/llm-a"]["status"]
    status["since"] = "2023-11-14T22:13:18.5Z"
    lines = plugin("explain", "llm-a", "-n", "ml")[1].splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("    ")][-2:] == [
        ["+1.5", "s", "Open"],
        ["+3.0", "s", "Decided"],
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"phase": "Observed", "closedAt": "2023-11-14T22:20:00Z"},
            "no, it was over at 2023-11-14T22:20:00Z",
        ),
        ({"phase": "ShuttingDown"}, "no, the ranks that it saw are being ended and started again"),
        ({"phase": "Recovered"}, "no, the job makes progress again since 2023-11-14T22:13:21Z"),
        ({"phase": "Failed"}, "not known: its restart failed"),
        ({"phase": "Refused"}, "yes, as far as the nodes report: this incident is open"),
    ],
)
def test_kubectl__an_explanation_says_whether_it_still_holds(
    plugin: Plugin, changes: dict[str, str], said: str
) -> None:
    plugin.cluster.put("ml", "llm-a")
    plugin.cluster.objects[f"{GROUP}/namespaces/ml/incidents/llm-a"]["status"] |= changes
    assert f"  still so: {said}" in plugin("explain", "llm-a", "-n", "ml")[1].splitlines()


def test_kubectl__an_incident_without_a_status_is_explained(plugin: Plugin) -> None:
    plugin.cluster.put("default", "new")
    del plugin.cluster.objects[f"{GROUP}/namespaces/default/incidents/new"]["status"]
    assert plugin("explain", "new")[1].splitlines()[1] == "no decision yet"


def test_kubectl__an_approval_is_written_into_the_spec_alone(plugin: Plugin) -> None:
    plugin.cluster.put("default", "llm-a")
    assert plugin("approve", "llm-a") == (0, "incident llm-a approved\n", "")
    spec = plugin.cluster.objects[f"{GROUP}/namespaces/default/incidents/llm-a"]["spec"]
    assert spec["approved"] is True


def test_kubectl__a_dry_run_is_switched_on_and_off(plugin: Plugin) -> None:
    path = f"{GROUP}/namespaces/default/faultpolicies/careful"
    assert plugin("dry-run", "careful", "on")[:2] == (0, "FaultPolicy careful: dry run on\n")
    assert plugin.cluster.objects[path]["spec"] == {"dryRun": True}, (
        "it is made where there is none"
    )
    assert plugin("dry-run", "careful", "off")[0] == 0
    assert plugin.cluster.objects[path]["spec"] == {"dryRun": False}


@pytest.mark.parametrize(
    "server", ["2020-01-01T00:00:00Z", "2090-01-01T00:00:00Z"], ids=["behind us", "ahead of us"]
)
def test_kubectl__uncordon_a_node_is_declared_well_by_the_clock_of_the_api_server(
    plugin: Plugin, server: str
) -> None:
    """One ahead of it would hide the faults of the time between, and one behind it would uncordon nothing."""
    plugin.cluster.objects["/api/v1/nodes/n7"] = {"metadata": {}}
    plugin.cluster.written = server
    code, out, _ = plugin("uncordon", "n7")
    assert (code, out) == (0, "node n7 marked healthy; the controller will uncordon it\n")
    assert cleared_s(plugin) == rfc3339.from_text(server)


def test_kubectl__uncordon_a_cordon_of_the_same_second_is_over_as_well(plugin: Plugin) -> None:
    cordoned = "2026-01-01T00:00:00.700000Z"
    annotations = {CORDONED: f"{cordoned} xid_79"}
    plugin.cluster.objects["/api/v1/nodes/n7"] = {"metadata": {"annotations": annotations}}
    assert plugin("uncordon", "n7")[0] == 0
    assert cleared_s(plugin) == rfc3339.from_text(cordoned)


def test_kubectl__uncordon_without_the_time_of_the_server_nothing_is_changed(
    plugin: Plugin,
) -> None:
    plugin.cluster.objects["/api/v1/nodes/n7"] = {"metadata": {}}
    plugin.cluster.written = None
    code, err = plugin.fails("uncordon", "n7")
    assert code == 3
    assert "kubectl annotate --overwrite node n7 kcover.io/cleared=" in err
    assert plugin.cluster.objects["/api/v1/nodes/n7"] == {"metadata": {}}


def cleared_s(plugin: Plugin) -> float:
    """Until when faults of node n7 do not count; unix seconds."""
    return rfc3339.from_text(
        plugin.cluster.objects["/api/v1/nodes/n7"]["metadata"]["annotations"][CLEARED]
    )


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({}, "it stays cordoned, because others cordoned it: kubectl uncordon n7\n"),
        ({CORDONED: "x"}, "the controller will uncordon it\n"),
        ({CORDONED: "x", CORDONED_BY: "others"}, "others cordoned it: kubectl uncordon n7\n"),
    ],
)
def test_from_text__a_cordon_of_others_is_left_to_them(
    plugin: Plugin, annotations: dict[str, str], words: str
) -> None:
    raw = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": True}}
    plugin.cluster.objects["/api/v1/nodes/n7"] = raw
    code, out, _ = plugin("uncordon", "n7")
    assert code == 0
    assert out.startswith("node n7 marked healthy; ")
    assert out.endswith(words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "none"], "no incident none in namespace default; see kubectl kcover list -A"),
        (["approve", "none", "-n", "ml"], "no incident none in namespace ml"),
        (["dry-run", "none", "off"], "no FaultPolicy none in namespace default"),
        (["uncordon", "none"], "no node none; see kubectl get nodes"),
        (["explain", ""], "is not a valid object name"),
        (["explain", "../nodes"], "is not a valid object name"),
        (["approve", "a/status"], "is not a valid object name"),
        (["list", "-n", "Not A Namespace"], "is not a valid object name"),
        (["dry-run", "p", "maybe"], "'maybe' is not one of"),
        (["list", "-o", "yaml"], "'yaml' is not one of"),
        (["explain"], "Missing argument 'INCIDENT'"),
        (["lst"], "No such command 'lst'"),
    ],
)
def test_main__bad_input_is_one_line_and_2(
    plugin: Plugin, arguments: list[str], words: str
) -> None:
    code, err = plugin.fails(*arguments) if arguments != ["lst"] else _bare(plugin, "lst")
    assert code == 2
    assert words in err


def _bare(plugin: Plugin, *arguments: str) -> tuple[int, str]:
    code = kubectl.main(list(arguments))
    return code, plugin.capsys.readouterr().err


def test_kubectl__a_cluster_that_cannot_be_reached_is_one_line_and_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = Plugin(FakeCluster(), kubeconfig(tmp_path, "http://127.0.0.1:1"), capsys)
    code, err = nowhere.fails("list")
    assert code == 3
    assert "the API server does not answer: GET /apis/kcover.io" in err


def test_kubectl__a_cluster_without_kcover_is_one_line_and_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(lambda _: Answer(404, {"message": "page not found"})) as server:
        code, err = Plugin(FakeCluster(), kubeconfig(tmp_path, server.url), capsys).fails(
            "list", "-A"
        )
    assert code == 3
    assert "is kcover-ebpf installed?" in err


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "no kubeconfig"),
        ("{", "cannot use the kubeconfig"),
        ("", "cannot use the kubeconfig"),
    ],
    ids=["missing", "not yaml", "empty"],
)
def test_kubectl__a_kubeconfig_that_is_none_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str | None, words: str
) -> None:
    path = tmp_path / "config"
    if config is not None:
        path.write_text(config)
    code, err = Plugin(FakeCluster(), str(path), capsys).fails("list")
    assert code == 2
    assert words in err


def test_kubectl__a_right_that_is_missing_is_named(plugin: Plugin) -> None:
    plugin.cluster.refuse = 403
    code, err = plugin.fails("approve", "llm-a")
    assert code == 3
    assert "not allowed: GET" in err
    assert "no, because" in err


def test_kubectl__an_object_of_another_version_is_one_line(plugin: Plugin) -> None:
    plugin.cluster.raw = {"metadata": {"name": "x"}, "spec": {"job": "a string"}}
    code, err = plugin.fails("explain", "x")
    assert code == 1
    assert "spec.job: expected an object" in err
    assert "newer version" in err


def test_kubectl__an_unforeseen_error_is_one_line_and_70(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.cluster.put("default", "llm-a")

    def broken(*_: object) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(kubectl, "_row", broken)
    code, err = plugin.fails("list")
    assert code == 70
    assert "internal error, please report it: ZeroDivisionError: oh at test_kubectl.py:" in err


def test_kubectl__names_that_a_job_gave_itself_command_no_terminal(plugin: Plugin) -> None:
    plugin.cluster.put("default", "llm-a")
    (raw,) = plugin.cluster.objects.values()
    bell = "thread \x1b]0;owned\x07\nllm/fake: Recovered"
    raw["status"]["message"] = bell
    raw["status"]["evidence"][0]["text"] = bell
    raw["status"]["unobserved"] = [bell]
    raw["status"]["timeline"][0]["text"] = bell
    raw["status"]["culprit"]["pod"] = bell
    for command in (("explain", "llm-a"), ("list",)):
        out = plugin(*command)[1]
        assert all(char.isprintable() or char == "\n" for char in out)
        assert "\nllm/fake" not in out
        assert "owned" in out
