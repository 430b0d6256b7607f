"""tools/setup: quiet when nothing is missing, one clear line when it cannot continue."""

import os
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[3] / "tools/setup"


def run_setup(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SETUP, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def fake_path(tmp_path: Path) -> Path:
    """A folder of stubs that comes first on PATH."""
    for name, body in {"dpkg-query": "exit 1", "apt-get": "touch $0.ran"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def with_fakes(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


def test_setup__it_is_quiet_when_nothing_is_missing() -> None:
    result = run_setup("test")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_setup__an_unknown_profile_is_a_usage_error() -> None:
    result = run_setup("everything")
    assert result.returncode == 2
    usage = (
        "usage: tools/setup [build | demo | test | vm | vm-arm64 | image | cluster | bench | docs]"
    )
    assert result.stderr.startswith(usage)


def test_setup__without_root_it_says_what_to_run(fake_path: Path) -> None:
    (fake_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (fake_path / "id").chmod(0o755)
    result = run_setup("build", PATH=with_fakes(fake_path))
    assert result.returncode == 1
    assert result.stderr.startswith("setup: missing Debian packages; run as root: apt-get install ")
    assert "clang-14" in result.stderr
    assert not (fake_path / "apt-get.ran").exists()


def test_setup__system_packages_can_be_left_alone(fake_path: Path) -> None:
    result = run_setup("test", PATH=with_fakes(fake_path), KCOVER_SKIP_APT="1")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (fake_path / "apt-get.ran").exists()
