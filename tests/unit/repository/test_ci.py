"""The files for forges run our make targets, and fetch only what is pinned."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = ROOT / ".github/workflows"
FORGES = {
    "github": [WORKFLOWS / "ci.yml", WORKFLOWS / "release.yml"],
    "gitlab": [ROOT / ".gitlab-ci.yml"],
}
FILES = [file for files in FORGES.values() for file in files]
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def strings(value: Any) -> Iterator[str]:
    """Every string in a document."""
    if isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("files", FORGES.values(), ids=FORGES)
def test_ci__forges_run_the_same_targets(files: list[Path]) -> None:
    texts = [text for file in files for text in strings(yaml.safe_load(file.read_text()))]
    lines = [line for text in texts for line in text.splitlines()]
    run = {line.split()[1] for line in lines if line.startswith("make ")}
    assert run == {"check", "docs", "test", "test-install", "release"}
    assert run <= TARGETS


def test_ci__actions_are_pinned_by_their_commit() -> None:
    used = [name for file in FILES for name in re.findall(r"uses: (\S+)", file.read_text())]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name)] == []


def test_ci__images_are_pinned_by_their_digest() -> None:
    text = "".join(file.read_text() for file in FILES)
    images = re.findall(r"^ +(?:image|container): (\S+)$", text, re.MULTILINE)
    assert images
    assert [name for name in images if not re.search(r"@sha256:[0-9a-f]{64}$", name)] == []


def test_ci__a_release_is_built_once() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]
    building = [name for name, job in jobs.items() if "make " in str(job["steps"])]
    assert building == ["build"]
    assert jobs["publish"]["needs"] == "build"


def publishing() -> dict[str, Any]:
    """The job that publishes a release."""
    job: dict[str, Any] = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]["publish"]
    return job


def test_ci__a_release_attests_the_files_and_the_image() -> None:
    job = publishing()
    attested = [step["with"] for step in job["steps"] if "attest-build" in step.get("uses", "")]
    assert [sorted(subject) for subject in attested] == [
        ["subject-checksums"],
        ["subject-digest", "subject-name"],
    ]
    assert job["permissions"].items() >= {"id-token": "write", "attestations": "write"}.items()


def test_ci__a_release_publishes_who_owns_the_chart() -> None:
    pushes = [text for text in strings(publishing()["steps"]) if "oras push" in text]
    assert len(pushes) == 1
    named = re.findall(r"^ +([\w-]+\.yml):", pushes[0], re.MULTILINE)
    assert named == ["artifacthub-repo.yml"]
    assert (ROOT / "charts" / named[0]).is_file()


def test_ci__a_release_is_tried_on_every_system() -> None:
    suites = re.search(r"^SUITES \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert suites
    assert f'make test-install SUITES="{suites[1]}"' in (WORKFLOWS / "release.yml").read_text()


FORMS = sorted(
    form for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if form.stem != "config"
)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_ci__a_form_for_issues_asks_what_the_forge_can_show(form: Path) -> None:
    loaded = yaml.safe_load(form.read_text())
    assert {part["type"] for part in loaded["body"]} <= {"textarea", "input", "dropdown"}
    ids = [part["id"] for part in loaded["body"]]
    assert len(ids) == len(set(ids)) > 1
    assert loaded["name"]
    assert loaded["description"]
