"""`kubectl kcover bundle` and `report`: agents of two nodes, a connection that breaks, and what is missing."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest

from kcover_ebpf.api.incident import incident_of, object_of, status_of
from kcover_ebpf.archive.incident_archive import Archive, packed, unpacked
from kcover_ebpf.cli import kubectl
from kcover_ebpf.errors import CannotObserve, Forbidden, UsageError
from kcover_ebpf.output import archives, part_transfer
from kcover_ebpf.output.part_transfer import Received, lines_of
from kcover_ebpf.postmortem import fetch
from kcover_ebpf.stores.store import part_key
from tests.unit.support import incident_archives as build
from tests.unit.support.fake_api_server import Answer, Request, serving
from tests.unit.support.kubeconfigs import kubeconfig

WHOLE = build.archive()
NODES = [part.node for part in WHOLE.parts]
PATH = "/var/lib/kcover-ebpf/bundles/20260101T000012.000Z-train-x7k2"


@dataclass
class FakeAgents:
    """What the agent of each node kept, by its pod; `cut`: lines after which a connection breaks, each once."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    cut: dict[str, list[int]] = field(default_factory=dict)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)
    said: str = ""
    refuse: bool = False


class FakeTransfer:
    """One command in an agent."""

    agents: FakeAgents
    refusal = ""

    def __init__(self, _: object, namespace: str, agent: str, container: str, command: Any) -> None:
        assert (namespace, container) == ("kcover", "agent")
        if self.agents.refuse:
            raise Forbidden("pods/exec is forbidden")
        self.agents.commands.append((agent, list(command)))
        self._agent, self._command = agent, command
        self.said = self.agents.said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def lines(self, _: float) -> Iterator[str]:
        files = self.agents.files.get(self._agent)
        if files is None:
            return
        lines = list(lines_of(files, int(self._command[-1])))
        cuts = self.agents.cut.get(self._agent)
        yield from lines[: cuts.pop(0)] if cuts else lines


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> FakeAgents:
    found = FakeAgents()
    for part in WHOLE.parts:
        alone = Archive(WHOLE.job, WHOLE.name, parts=(part,))
        found.files[f"agent-{part.node}"] = packed(alone)

    def agent_on(_: object, node: str, namespace: str | None) -> tuple[str, str]:
        assert namespace is None
        if node not in NODES:
            raise CannotObserve(f"no agent of kcover-ebpf runs on node {node}")
        return "kcover", f"agent-{node}"

    monkeypatch.setattr(FakeTransfer, "agents", found, raising=False)
    monkeypatch.setattr(fetch, "Exec", FakeTransfer)
    monkeypatch.setattr(fetch, "agent_on", agent_on)
    return found


def incident(*more: str) -> dict[str, Any]:
    found = WHOLE.incident
    assert found is not None
    assert found.status is not None
    bundles = tuple(f"{node}:{PATH}" for node in (*NODES, *more))
    status = replace(found.status, bundles=bundles, nodes=(*NODES, "gpu-node-7"))
    return object_of(found) | {"status": status_of(status)}


@dataclass
class Plugin:
    config: str
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = kubectl.main([*arguments, "-n", "research", "--kubeconfig", self.config])
        out, err = self.capsys.readouterr()
        return code, out, err


@pytest.fixture
def plugin(
    agents: FakeAgents, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Plugin]:
    assert agents.files

    def answer(request: Request) -> Answer:
        if request.path.endswith("/namespaces/research/incidents/train-x7k2"):
            return Answer(body=incident("gpu-node-9"))
        return Answer(404, {"message": "not found"})

    with serving(answer) as server:
        yield Plugin(kubeconfig(tmp_path, server.url), capsys)


def read(folder: Path) -> Archive:
    return unpacked(archives.read_files(folder), "archive")


def test_kubectl_archive__the_parts_of_all_nodes_are_merged_and_what_is_missing_is_said(
    plugin: Plugin, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    code, out, err = plugin("bundle", "train-x7k2", "--to", str(folder))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(f"{folder}: the parts of 2 nodes, ")
    assert "missing: gpu-node-9: no agent of kcover-ebpf runs on node gpu-node-9" in out
    why = "it reported no bundle for this incident; no agent of kcover-ebpf runs on node gpu-node-7"
    assert f"missing: gpu-node-7: {why}" in out
    archive = read(folder)
    assert archive.parts == WHOLE.parts
    assert {part.what for part in archive.missing} == {"gpu-node-9", "gpu-node-7"}
    assert archive.incident is not None
    assert archive.incident.status is not None
    assert len(archive.incident.status.timeline) == 5


def test_kubectl_archive__a_node_that_the_incident_has_no_room_for_is_asked_for_its_newest(
    agents: FakeAgents,
) -> None:
    """64 are listed at most; a job of 10,000 ranks has 1,250 nodes."""
    kept = fetch.kept_bundles(incident_of(incident()))
    assert [bundle.node for bundle in kept] == [*NODES, "gpu-node-7"]
    assert kept[-1].arguments == [PATH.rpartition("/")[0], "--newest-of", "train-x7k2"]
    assert kept[0].arguments == [PATH]


def test_kubectl_archive__a_second_call_fetches_only_what_was_missing(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    arguments = ("bundle", "train-x7k2", "--to", str(tmp_path / "kept"), "-o", "json")
    late = f"agent-{NODES[1]}"
    files = agents.files.pop(late)
    first = json.loads(plugin(*arguments)[1])
    assert first["nodes"] == NODES[:1]
    assert NODES[1] in {part["what"] for part in first["missing"]}
    agents.files[late] = files
    agents.commands.clear()
    assert json.loads(plugin(*arguments)[1])["nodes"] == NODES
    assert {agent for agent, _ in agents.commands} == {late}


def test_kubectl_archive__a_connection_that_breaks_is_continued_where_it_ended(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_transfer, "_LINE_BYTES", 512)
    agents.cut[f"agent-{NODES[0]}"] = [3, 2]
    assert plugin("bundle", "train-x7k2", "--to", str(tmp_path / "kept"))[0] == 0
    offsets = [command[-1] for agent, command in agents.commands if agent.endswith(NODES[0])]
    assert offsets == ["0", "1024", "1536"]
    assert read(tmp_path / "kept").parts == WHOLE.parts


def test_kubectl_archive__an_agent_that_answers_something_else_is_missing_with_its_reason(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    agents.files.clear()
    agents.said = "kcover-ebpf: cannot read /var/lib/x: No such file or directory"
    code, out, _ = plugin("bundle", "train-x7k2", "--to", str(tmp_path / "kept"))
    assert code == 0
    assert f"missing: {NODES[0]}: the agent kcover/agent-{NODES[0]}: cannot read /var/lib/x" in out
    assert read(tmp_path / "kept").parts == ()


def test_kubectl_archive__a_node_speaks_for_itself_alone(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    """One that was broken into sends parts of other nodes, and files outside of its folder."""
    forged = packed(Archive(WHOLE.job, parts=(WHOLE.parts[1], WHOLE.parts[0])))
    forged["../../escaped"] = b"x"
    agents.files[f"agent-{NODES[0]}"] = forged
    plugin("bundle", "train-x7k2", "--to", str(tmp_path / "kept"))
    archive = read(tmp_path / "kept")
    assert [part.node for part in archive.parts] == NODES
    assert archive.parts[1] == WHOLE.parts[1]
    assert not (tmp_path.parent / "escaped").exists()


def test_kubectl_archive__who_may_not_exec_is_informed(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    agents.refuse = True
    out = plugin("bundle", "train-x7k2", "--to", str(tmp_path / "kept"))[1]
    assert f"missing: {NODES[0]}: pods/exec is forbidden" in out
    assert len(agents.commands) == 0


def test_kubectl_archive__the_page_of_an_incident_is_one_file(
    plugin: Plugin, tmp_path: Path
) -> None:
    page = tmp_path / "incident.html"
    code, out, _ = plugin("report", "train-x7k2", "--to", str(page))
    assert code == 0
    assert out.startswith(f"{page}: the page of incident train-x7k2, from 2 nodes\n")
    text = page.read_text()
    assert "Rank 11 (pod train-11 on node gpu-node-0001) waits for storage" in text
    assert "no agent of kcover-ebpf runs on node gpu-node-9" in text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("bundle", "other", "--to", "kept"), "no incident other in namespace research"),
        (("bundle", "train-x7k2"), "--to"),
        (("bundle", "../x", "--to", "kept"), "not a valid object name"),
        (("report", "train-x7k2", "--to", "absent/x.html"), "cannot write absent/x.html"),
    ],
)
def test_kubectl_archive__a_wrong_call_is_one_line_and_exit_code_2(
    plugin: Plugin,
    arguments: tuple[str, ...],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = plugin(*arguments)
    assert (code, out) == (2, "")
    assert why in err
    assert err.count("\n") == 1


def test_kubectl_archive__a_folder_with_other_files_is_left_alone(
    plugin: Plugin, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    code, _, err = plugin("bundle", "train-x7k2", "--to", str(tmp_path))
    assert code == 2
    assert "is not empty and holds no archive" in err


def test_kubectl_archive__the_store_is_asked_for_what_no_agent_has(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    """Of the two nodes one has lost its agent, and its part is in the store; a forged one of the other is not taken."""
    lost, kept = WHOLE.parts
    agents.files.pop(f"agent-{lost.node}")
    store, folder = tmp_path / "store", tmp_path / "kept"
    for node, part in ((lost.node, lost), (kept.node, replace(lost, node=kept.node))):
        content = archives.tar_of(packed(Archive(WHOLE.job, WHOLE.name, parts=(part,))))
        key = part_key("research", node, PATH.rpartition("/")[2])
        (store / key).parent.mkdir(parents=True, exist_ok=True)
        (store / key).write_bytes(content)
    code, out, _ = plugin("bundle", "train-x7k2", "--to", str(folder), "--store", str(store))
    assert code == 0
    assert "missing: gpu-node-9: no agent of kcover-ebpf runs on node gpu-node-9; nor is " in out
    assert read(folder).parts == WHOLE.parts


def test_kubectl_archive__a_part_that_cannot_be_read_is_fetched_again(
    plugin: Plugin, agents: FakeAgents, tmp_path: Path
) -> None:
    agents.files.clear()
    store, folder = tmp_path / "store", tmp_path / "kept"
    content = gzip.compress(archives.tar_of(packed(replace(WHOLE, parts=WHOLE.parts[:1]))))
    path = store / part_key("research", NODES[0], PATH.rpartition("/")[2])
    path.parent.mkdir(parents=True)
    arguments = ("bundle", "train-x7k2", "--to", str(folder), "--store", str(store))
    for held, nodes in ((content[:-600], []), (content, NODES[:1])):
        path.write_bytes(held)
        assert plugin(*arguments)[0] == 0
        assert [part.node for part in read(folder).parts] == nodes


def test_kubectl_archive__a_store_that_is_none_is_one_line_and_exit_code_2(
    plugin: Plugin, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    code, _, err = plugin("bundle", "train-x7k2", "--to", str(folder), "--store", "incidents")
    assert code == 2
    assert err.endswith("'incidents' is not a store: write s3://BUCKET/PREFIX, or /FOLDER\n")


def test_received__a_bundle_that_changed_or_grew_is_begun_anew() -> None:
    one, other = packed(build.archive(8, 3)), packed(build.archive(16, 3))
    received = Received()
    lines = list(lines_of(one, 0))
    assert not received.take(lines[:1])
    with pytest.raises(Exception, match="changed while it was fetched"):
        received.take(lines_of(other, 0))
    assert received.take(lines_of(other, 0))
    with pytest.raises(Exception, match="more than it had announced"):
        Received().take([lines[0], *lines[1:-1], *lines[1:-1]])
    with pytest.raises(Exception, match="not base64"):
        Received().take([lines[0], "\x00"])
    for size_bytes, why in ((1 << 40, "larger than 128 MiB"), (float("inf"), "sends no bundles")):
        huge = json.dumps({**json.loads(lines[0]), "size_bytes": size_bytes})
        with pytest.raises(UsageError, match=why):
            Received().take([huge])


def test_kubectl_archive__the_plugin_needs_nothing_that_its_archive_leaves_out() -> None:
    """`tools.release.plugin` packs fewer packages than the image has."""
    modules = ("re2", "prometheus_client", "pynvml", "py_spy")
    code = f"""
import sys
sys.modules |= dict.fromkeys({modules!r})
from kcover_ebpf.cli import kubectl, kubectl_nodes, report
from kcover_ebpf.postmortem import fetch, page, render
from kcover_ebpf.trace.gang import agent_pods
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")
