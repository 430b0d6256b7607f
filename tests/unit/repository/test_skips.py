"""The skip policy: a reason here, a failure in CI unless it was expected."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import skips

SUITE = """
import pytest
from testbed import skips

@pytest.mark.needs("root")
def test_marked(): pass

def test_asked_for():
    skips.skip("magic", "no wizard")

def test_unexplained():
    pytest.skip("not today")

@pytest.mark.xfail(reason="known")
def test_known_failure():
    assert False

def test_passes(): pass
"""
LACKS_ROOT = """
from testbed import skips
skips.CAPABILITIES["root"] = (lambda: False, "run as root")
skips.EXPECTED_SKIPS = __import__("pathlib").Path(__file__).with_name("expected.txt")
"""


def run_suite(folder: Path, suite: str, expected: str, **environ: str) -> str:
    conftest = (skips.ROOT / "tests/conftest.py").read_text()
    (folder / "conftest.py").write_text(conftest + LACKS_ROOT)
    (folder / "expected.txt").write_text(expected)
    (folder / "test_suite.py").write_text(suite)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs(*capabilities)\n")
    inherited = {k: v for k, v in os.environ.items() if k not in ("CI", "KCOVER_NO_SKIP")}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--color=no", "-ra"],
        cwd=folder,
        env={
            **inherited,
            "PYTHONPATH": str(skips.ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout


def test_skips__a_missing_capability_skips_with_its_reason(tmp_path: Path) -> None:
    output = run_suite(tmp_path, SUITE, expected="")
    assert "1 passed, 3 skipped, 1 xfailed" in output
    assert "needs root: run as root" in output


@pytest.mark.parametrize("environ", [{"CI": "true"}, {"KCOVER_NO_SKIP": "1"}])
def test_skips__in_ci_every_unexpected_skip_fails(tmp_path: Path, environ: dict[str, str]) -> None:
    output = run_suite(tmp_path, SUITE, expected="# nothing\n\n", **environ)
    # A skip by marker happens in the set-up, which pytest counts as an error.
    assert "2 failed, 1 passed, 1 xfailed, 1 error" in output


def test_skips__in_ci_an_expected_skip_stays_a_skip(tmp_path: Path) -> None:
    output = run_suite(tmp_path, SUITE, expected="root: a test\nmagic: none here\n", CI="true")
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed" in output
    assert "FAILED test_suite.py::test_unexplained" in output
    assert "Skipped: not today\nNothing may be skipped here" in output


def test_skips__in_ci_a_module_skipped_whole_fails(tmp_path: Path) -> None:
    suite = 'import pytest\npytest.importorskip("no_such_module")\ndef test_it(): pass\n'
    assert "1 skipped" in run_suite(tmp_path, suite, expected="")
    assert "1 error" in run_suite(tmp_path, suite, expected="", CI="true")


def test_skips__an_expected_skip_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="give a reason: 'kprobe'"):
        skips.expected_skips("nvidia: no GPU\nkprobe\n")


def test_skips__the_checked_in_list_is_valid_and_known() -> None:
    listed = skips.expected_skips(skips.EXPECTED_SKIPS.read_text())
    assert listed <= set(skips.CAPABILITIES)


def test_skips__an_unknown_capability_is_an_error_not_a_skip() -> None:
    with pytest.raises(KeyError, match="rooot"):
        skips.require("rooot")


def test_skips__a_tool_that_does_not_exist_is_a_missing_capability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert shutil.which("bpftool") is None or skips.CAPABILITIES["bpftool"][0]()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not skips.CAPABILITIES["bpftool"][0]()
