"""How `python -m tests` runs its parts: what it prints, what fails it, and that no test is lost between the tiers."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import tests.__main__ as tiers
from tests.__main__ import Part

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a test that passes, one that fails, and one that is skipped."""
    (tmp_path / "test_good.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_bad.py").write_text("def test_b(): raise SystemError('the reason')\n")
    (tmp_path / "test_none.py").write_text("import pytest\ndef test_c(): pytest.skip('why')\n")
    monkeypatch.setattr(tiers, "LOGS", tmp_path / "logs")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def part(folder: Path, name: str) -> Part:
    options = (
        "-ra",
        f"--rootdir={folder}",
        f"--confcutdir={folder}",
        "-c/dev/null",
    )
    return Part(name, (*options, str(folder / f"test_{name}.py")))


def test_main__a_part_that_fails_is_printed_whole_and_the_others_are_not(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        tiers, "PARTS", (part(parts, "bad"), part(parts, "none"), part(parts, "good"))
    )
    assert tiers.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "E   SystemError: the reason" in lines
    assert not [line for line in lines if "test_good.py" in line]
    assert [line for line in lines if line.startswith("SKIPPED") and line.endswith("why")]
    assert re.fullmatch(r"=+ 1 failed, 1 passed, 1 skipped in [\d.]+s =+", lines[-1])


CHANCE = """
import pathlib, pytest
@pytest.mark.parametrize("number", range({count}))
def test_d(number):
    was = pathlib.Path({folder!r}, str(number))
    assert was.exists() or was.write_text("") , "the reason"
"""


TEARDOWN = """
import pathlib, pytest
@pytest.fixture
def bed():
    yield
    was = pathlib.Path({folder!r}, "ended")
    assert was.exists() or was.write_text(""), "the reason"
def test_e(bed): pass
"""


@pytest.mark.parametrize(
    ("count", "code", "words"), [(3, 0, "4 passed, 3 flaky"), (4, 1, "4 failed, 1 passed")]
)
def test_main__a_few_that_pass_by_themselves_are_flaky(
    parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    count: int,
    code: int,
    words: str,
) -> None:
    (parts / "test_chance.py").write_text(CHANCE.format(count=count, folder=str(parts)))
    monkeypatch.setattr(tiers, "PARTS", (part(parts, "good"), part(parts, "chance")))
    assert tiers.main([]) == code
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "the reason" in line]
    assert summary_words(lines[-1]).startswith(words)


def test_main__a_teardown_that_fails_once_is_flaky_too(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (parts / "test_teardown.py").write_text(TEARDOWN.format(folder=str(parts)))
    monkeypatch.setattr(tiers, "PARTS", (part(parts, "good"), part(parts, "teardown")))
    assert tiers.main([]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert summary_words(last).startswith("2 passed, 1 flaky")


@pytest.mark.parametrize(("more", "counted"), [([], "1 passed"), (["-k", "nothing"], "no tests")])
def test_main__a_part_that_passes_or_in_which_nothing_is_selected(
    parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    counted: str,
) -> None:
    monkeypatch.setattr(tiers, "PARTS", (part(parts, "good"),))
    assert tiers.main(more) == 0
    assert counted in capsys.readouterr().out.splitlines()[-1]


def test_main__a_part_that_is_no_pytest_is_not_counted(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = Part("says", ("3 passed",), command=("echo",))
    fails = Part("fails", ("-c", "echo 4 failed; exit 3"), command=("sh",))
    monkeypatch.setattr(tiers, "PARTS", (says, fails))
    assert tiers.main(["--durations=3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "4 failed" in lines
    assert re.fullmatch(r"=+ no tests in [\d.]+s =+", lines[-1])


def test_main__a_part_begins_once_the_one_before_it_has_ended(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Part("first", ("-c", "sleep 1; touch made"), command=("sh",))
    then = Part("then", ("-c", "test -e made"), command=("sh",), after=("first",))
    fails = Part("fails", ("-c", "test -e made"), command=("sh",))
    monkeypatch.setattr(tiers, "ROOT", parts)
    monkeypatch.setattr(tiers, "PARTS", (then, fails, first))
    assert tiers.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(" failed")] == ["tests: fails failed"]


@pytest.mark.parametrize(("config", "is_built"), [(None, True), ("/there/config", False)])
def test_main__no_kubernetes_is_built_where_another_is_used(
    parts: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, is_built: bool
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if config is not None:
        monkeypatch.setenv("KUBECONFIG", config)
    made = parts / "made"
    builds = Part(tiers.PROGRAMS, (str(made),), command=("touch",))
    monkeypatch.setattr(tiers, "PARTS", (builds, Part("true", (), command=("true",))))
    assert tiers.main([]) == 0
    assert made.exists() == is_built


def test_main__a_part_that_cannot_start_fails(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "PARTS", (Part("broken", ("--no-such-option",)),))
    assert tiers.main([]) == 1


def test_summary__as_pytest_ends() -> None:
    counts = Counter({"passed": 3, "failed": 1, "error": 2})
    assert summary_words(tiers.summary(counts, 1.5)) == "1 failed, 2 error, 3 passed in 1.50s"


def summary_words(line: str) -> str:
    return line.strip("= ")


def test_tiers__what_make_test_leaves_out_another_target_runs() -> None:
    """`long` and `alone` are of the unit and kernel tests, which test-long runs whole; `core` is of the cluster's."""
    makefile = (ROOT / "Makefile").read_text()
    whole = re.findall(
        r"-m pytest (tests/\w+)(?: --numprocesses=auto --dist=worksteal --hypothesis-profile=thorough)?$",
        makefile,
        re.MULTILINE,
    )
    assert set(whole) >= {
        "tests/unit",
        "tests/kernel",
        "tests/cluster",
        "tests/chart",
        "tests/attack",
    }
    (all_of_it,) = re.findall(r"^test-all: ([^#]*) ##", makefile, re.MULTILINE)
    assert set(all_of_it.split()) >= {
        "test",
        "test-long",
        "test-cluster",
        "test-chart",
        "test-attack",
    }
    parts = {other_part.arguments[0] for other_part in tiers.PARTS}
    assert parts == {"build", "first", "tests/unit", "tests/kernel", "tests/cluster", "check"}
