"""tools/testbed without a cluster: names, choices, images, how a wrong command is answered."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.cluster import (
    addons,
    build,
    cgroups,
    components,
    layout,
    oci,
    processes,
    state,
    versions,
)
from testbed.cluster.errors import Usage
from testbed.cluster.layout import Bed
from testbed.cluster.train import Place, place

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--name", "Big Bed", "status"], "error", id="the name before the verb"),
        pytest.param(["status", "--name", "a/b"], "use up to 20 of", id="a name with a slash"),
        pytest.param(["up", "--nodes", "0"], "--nodes 0: from 1 to 9", id="no node"),
        pytest.param(["up", "--kubernetes", "1.2"], "only 1.36, 1.34 are known", id="old release"),
        pytest.param(
            ["up", "--controllers", "x"], "--controllers x: choose", id="no such controller"
        ),
        pytest.param(["fly"], "invalid choice: 'fly'", id="no such verb"),
    ],
)
def test_testbed__a_wrong_command_gets_one_line_and_code_2(words: list[str], said: str) -> None:
    done = subprocess.run(
        ["/usr/bin/python3", "-m", "testbed.cluster", *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_check_owner__what_another_checkout_left_dead_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other/.testbed"
    other.mkdir(parents=True)
    members: set[int] = {4711}
    monkeypatch.setattr(state, "owner", lambda _bed: str(other))
    monkeypatch.setattr(cgroups, "members", lambda _cgroup: members)
    bed = Bed.of_checkout(checkout=tmp_path)
    with pytest.raises(Usage, match="already runs from"):
        state.check_owner(bed)
    members.clear()
    state.check_owner(bed)


def test_bed__two_test_beds_share_no_name() -> None:
    one, other = Bed.of_checkout(), Bed.of_checkout("old")

    def names(bed: Bed) -> set[str]:
        node = bed.nodes(1)[0]
        return {
            bed.cgroup,
            str(bed.folder),
            str(bed.mark),
            bed.control_netns,
            node.netns,
            node.cgroup,
        }

    assert not names(one) & names(other)
    assert one.folder == layout.CHECKOUT / ".testbed"


def test_chosen__controllers_come_after_what_they_need() -> None:
    assert addons.chosen(None) == ["training-operator", "jobset"]
    assert addons.chosen("none") == []
    assert addons.chosen("trainer") == ["jobset", "trainer"]
    assert addons.chosen("trainer,jobset") == ["jobset", "trainer"]
    assert "kwok" not in addons.chosen("all")


def test_controllers__every_controller_can_be_installed() -> None:
    assert versions.controllers()
    for controller in versions.controllers():
        text = (addons.FOLDER / controller.name / "kustomization.yaml").read_text()
        named = {match[2] for match in addons.PLACEHOLDER.finditer(text)}
        assert named == set(controller.programs) or named < set(controller.programs)
        assert all(versions.program(name).version.startswith("v") for name in named)


def test_by_version__a_release_is_known_by_both_its_names() -> None:
    release = versions.kubernetes("1.34")
    assert release.minor == "34"
    assert versions.by_version(release.version) == release
    with pytest.raises(Usage, match=r"v1\.2\.3"):
        versions.by_version("v1.2.3")


def test_write__a_written_image_is_what_its_digests_say(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"not really a layer")
    archive = tmp_path / "image.tar"
    oci.write(archive, "localhost/a:1", layer, "x86_64", {"User": "1"})
    assert oci.names(archive) == ["localhost/a:1"]
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.startswith("blobs/"):
                file = tar.extractfile(member)
                assert file is not None
                assert hashlib.sha256(file.read()).hexdigest() == Path(member.name).name
        index = json.load(tar.extractfile("index.json"))  # type: ignore[arg-type]
    assert index["manifests"][0]["mediaType"] == oci.MANIFEST


def write_tar(path: Path, name: str, content: str) -> Path:
    with tarfile.open(path, "w") as tar:
        file = path.with_name("content")
        file.write_text(content)
        tar.add(file, name)
    return path


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        pytest.param(
            "./index.json",
            '{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "a.b/c:1"}}]}',
            ["a.b/c:1"],
            id="buildah",
        ),
        pytest.param(
            "index.json",
            '{"manifests": [{"annotations": {"org.opencontainers.image.ref.name": "1"}}]}',
            [],
            id="a tag alone",
        ),
        pytest.param("index.json", '{"manifests": [{}]}', [], id="no name at all"),
        pytest.param("manifest.json", '[{"RepoTags": ["a/b:1"]}]', ["a/b:1"], id="docker save"),
        pytest.param("manifest.json", '[{"RepoTags": null}]', [], id="docker, no name"),
    ],
)
def test_names__the_name_of_an_archive(
    tmp_path: Path, name: str, content: str, names: list[str]
) -> None:
    assert oci.names(write_tar(tmp_path / "a.tar", name, content)) == names


@given(st.binary(max_size=600) | st.text(max_size=300).map(str.encode))
@example(b"\x1f\x8b")
def test_names__any_other_file_is_refused_as_no_image(content: bytes) -> None:
    file = Path("/dev/shm") / f"testbed-{hashlib.sha256(content).hexdigest()}"
    file.write_bytes(content)
    try:
        with pytest.raises(ValueError, match="is no image archive"):
            oci.names(file)
    finally:
        file.unlink()


@pytest.mark.parametrize(
    ("environ", "host", "expected"),
    [
        pytest.param(
            {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "demo-master-0"}, "demo-worker-2",
            Place(3, 4, "demo-master-0"), id="PyTorchJob",
        ),
        pytest.param(
            {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "demo-0.demo"},
            "demo-1", Place(1, 2, "demo-0.demo"), id="indexed Job",
        ),
        pytest.param(
            {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "demo-0.demo.n"},
            "demo-0-1", Place(1, 2, "demo-0.demo.n"), id="LeaderWorkerSet",
        ),
        pytest.param(
            {"WORLD_SIZE": "2", "MASTER_ADDR": "demo-0.demo"}, "demo-1",
            Place(1, 2, "demo-0.demo"), id="StatefulSet",
        ),
        pytest.param(
            {"TF_CONFIG": json.dumps({
                "cluster": {"worker": ["demo-worker-0.n.svc:2222", "demo-worker-1.n.svc:2222"]},
                "task": {"type": "worker", "index": 1},
            })},
            "demo-worker-1", Place(1, 2, "demo-worker-0.n.svc"), id="TFJob",
        ),
        pytest.param(
            {"PROCESS_ID": "0", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "demo-worker-0"},
            "demo-worker-0", Place(0, 2, "demo-worker-0"), id="JAXJob",
        ),
    ],
)  # fmt: skip
def test_place__a_rank_finds_its_place(environ: dict[str, str], host: str, expected: Place) -> None:
    assert place(environ, host) == expected


def test_process__a_process_is_known_again_by_its_start() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        ticks = processes.start_ticks(child.pid)
        assert ticks is not None
        assert processes.Process(child.pid, ticks, 0.0).alive()
        assert not processes.Process(child.pid, ticks - 1, 0.0).alive()
        child.kill()
    assert not processes.Process(child.pid, ticks, 0.0).alive()


@pytest.mark.parametrize(
    ("said", "numbers"),
    [("go1.26.8", (1, 26)), ("go1.19", (1, 19)), ("devel go1.27-abc", ()), ("", ())],
)
def test_version__the_version_of_go(said: str, numbers: tuple[int, ...]) -> None:
    assert build._version(said) == numbers


def test_hierarchies__the_machine_has_a_cgroup_hierarchy_and_v2_comes_first() -> None:
    found = cgroups.hierarchies()
    assert found
    assert all((top / "cgroup.procs").exists() for top in found)


def test_members__a_group_that_goes_while_they_are_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a runtime that is being killed still removes the groups of its containers."""
    for number, name in enumerate(("", "a", "b", "c"), start=1):
        (tmp_path / "bed" / name).mkdir()
        (tmp_path / "bed" / name / "cgroup.procs").write_text(f"{number}\n")
    read_text, first = Path.read_text, list[int]()

    def read(path: Path) -> str:
        text = read_text(path)
        if path.parent.name != "bed" and not first:
            first.append(int(text))
            for other in {*path.parent.parent.glob("*/")} - {path.parent}:
                shutil.rmtree(other)
        return text

    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    monkeypatch.setattr(Path, "read_text", read)
    assert cgroups.members("bed") == {1, *first}
    assert first


def test_free_port__a_port_that_is_taken_is_not_chosen() -> None:
    from testbed.cluster import up

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with up._free_port(number) as port:
            assert port != number


def test_free_port__two_test_beds_that_come_up_together_have_a_port_each() -> None:
    from testbed.cluster import up

    with up._free_port(41_000) as one, up._free_port(one) as other:
        assert other != one
    with up._free_port(one) as again:
        assert again == one


def test_ensure__a_component_that_ends_before_it_is_healthy_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet whose runtime accepts connections, and does not answer yet, gives up."""
    started: list[processes.Process] = []

    def start(*_: object) -> processes.Process:
        pid = os.getpid() if started else 0  # the first one is gone
        ticks = processes.start_ticks(os.getpid()) if started else 0
        started.append(processes.Process(pid, ticks or 0, 0.0))
        return started[-1]

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(components, "RESTART_S", 0.1)
    state = SimpleNamespace(processes={}, bed=SimpleNamespace(log=tmp_path), save=lambda: None)

    def healthy() -> bool:
        return started[-1].alive()

    component = components.Component("kubelet", "", ("true",), healthy, 10.0)
    components.ensure(state, component)  # type: ignore[arg-type]
    assert len(started) == 2
    components.ensure(state, component)  # type: ignore[arg-type]
    assert len(started) == 2
