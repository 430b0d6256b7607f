"""The command of a node: what it refuses before it begins, in one line."""

from pathlib import Path

import pytest

from kcover_ebpf.cli import main


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODE_NAME", "KCOVER_NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("kcover_ebpf.kernel.features.require_privileges", lambda: None)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["agent", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_main__a_node_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--node" in refused(capsys)


def test_main__the_name_may_come_from_the_pod(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NODE_NAME", "n1")
    arguments = ("--kubeconfig", str(tmp_path / "none"), "--state-dir", str(tmp_path))
    assert "no kubeconfig" in refused(capsys, *arguments)


def test_main__a_bad_kubeconfig(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "config"
    bad.write_text("users: [{name: u, user: {token: secret-word}}]\n")
    said = refused(capsys, "--node=n", "--kubeconfig", str(bad), "--state-dir", str(tmp_path))
    assert "--kubeconfig" in said
    assert "secret-word" not in said


def test_main__a_state_directory_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "orders.json").mkdir()
    assert "cannot read" in refused(capsys, "--node=n", "--state-dir", str(tmp_path))


def test_main__a_bad_address_of_the_metrics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ("--node=n", "--state-dir", str(tmp_path), "--metrics=here")
    assert "ADDR:PORT" in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--telemetry-every=2", "--telemetry-every: '2' is not a duration"),
        ("--telemetry-every=10ms", "--telemetry-every 10ms is too often"),
        ("--telemetry-from=exporter:9400", "write http://ADDRESS:9400/metrics"),
        ("--inspect-write-to=data", "--inspect-write-to 'data': give an absolute path"),
    ],
)
def test_main__options_that_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, words: str
) -> None:
    assert words in refused(capsys, "--node=n", "--state-dir", str(tmp_path), option)
