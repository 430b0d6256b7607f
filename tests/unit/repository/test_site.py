"""The site: what leads nowhere is found, pages outside docs/ get their place, the drawing names what exists."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.docs import drawing, links, site

ROOT = Path(__file__).resolve().parents[3]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a page of a small documentation; its path."""

    def write(name: str, text: str = "# Title\n") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    for name in links.OUTSIDE:
        write(name)
    return write


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[a](b.md)", []),
        ("[a](b.md#second-part)", []),
        ("[a](#own)\n\n## Own\n", []),
        ("[a](https://example.org/x)", []),
        ("```\n[a](none.md)\n```\n", []),
        ("[a](none.md)", ["none.md"]),
        ("[a](b.md#third)", ["b.md#third"]),
        ("[a](#own)", ["#own"]),
        ("[a](#not-a-heading)\n\n```sh\n# not a heading\n```\n", ["#not-a-heading"]),
    ],
)
def test_broken(write: Write, text: str, found: list[str]) -> None:
    write("docs/b.md", "# B\n\n## Second part\n")
    assert list(links.broken(write("docs/a.md", text))) == found


def test_pages__those_that_the_site_does_not_have_are_checked_too(
    write: Write, tmp_path: Path
) -> None:
    names = {"SECURITY.md", "tools/bench/README.md", "docs/a.md"}
    written = {write(name) for name in names} | {tmp_path / name for name in links.OUTSIDE}
    assert set(links.pages(tmp_path)) == written


def test_misplaced__pages_missing_invented_and_doubled(write: Write, tmp_path: Path) -> None:
    for name in ("a", "b", "deep/c", "deep/README"):
        write(f"docs/{name}.md")
    listed = "".join(f"  - {name}\n" for name in (*links.OUTSIDE.values(), *links.GENERATED))
    write("mkdocs.yml", f"nav:\n{listed}  - A: a.md\n  - B: b.md\n  - deep/\n")
    assert list(links.misplaced(tmp_path)) == []
    write("mkdocs.yml", f"nav:\n{listed}  - A: a.md\n  - Again: a.md\n  - no.md\n  - deep/\n")
    assert list(links.misplaced(tmp_path)) == [
        "b.md is not in the navigation",
        "no.md does not exist",
        "a.md is listed 2 times",
    ]


def test_expanded__a_folder_is_listed_with_its_readme_first(write: Write, tmp_path: Path) -> None:
    for name in ("README", "A", "Z"):
        write(f"docs/x/{name}.md")
    nav = [{"Home": "index.md"}, {"More": [{"X": "x/"}]}]
    assert site.expanded(nav, tmp_path / "docs") == [
        {"Home": "index.md"},
        {"More": [{"X": ["x/README.md", "x/A.md", "x/Z.md"]}]},
    ]


@pytest.mark.parametrize(
    ("source", "link", "repository", "expected"),
    [
        (
            "README.md",
            "[a](docs/install.md#less-privilege)",
            None,
            "[a](install.md#less-privilege)",
        ),
        ("README.md", "![a](docs/images/demo.svg)", None, "![a](images/demo.svg)"),
        ("README.md", "[a](CONTRIBUTING.md)", None, "[a](contributing.md)"),
        ("README.md", "[the records](docs/decisions)", None, "[the records](decisions/README.md)"),
        ("docs/install.md", "[a](../README.md#use)", None, "[a](index.md#use)"),
        ("docs/decisions/0001.md", "[a](../../CONTRIBUTING.md)", None, "[a](../contributing.md)"),
        ("docs/decisions/0001.md", "[a](template.md)", None, "[a](template.md)"),
        ("docs/a.md", "[why](../bpf/events.h)", None, "why (`bpf/events.h`)"),
        ("docs/a.md", "[events.h](../bpf/events.h)", None, "events.h"),
        (
            "docs/a.md",
            "[e](../bpf/events.h)",
            "https://x.org/r/",
            "[e](https://x.org/r/bpf/events.h)",
        ),
        ("docs/a.md", "[a](https://x.org/b.md)", None, "[a](https://x.org/b.md)"),
        ("docs/a.md", "[a](#b)", None, "[a](#b)"),
    ],
)
def test_relinked(source: str, link: str, repository: str | None, expected: str) -> None:
    assert site.relinked(link, source, repository) == expected


def test_drawing__names_modules_and_files_that_exist() -> None:
    source = tomllib.loads(drawing.SOURCE.read_text())
    named = {name for box in source["boxes"] for name in box.get("where", ())}
    assert named
    paths = {name if "/" in name else f"kcover_ebpf/{name.replace('.', '/')}.py" for name in named}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_drawing__every_box_is_on_the_path() -> None:
    source = tomllib.loads(drawing.SOURCE.read_text())
    ends = {end for arrow in source["arrows"] for end in (arrow["from"], arrow["to"])}
    assert ends == set(drawing.boxes(source))


def test_drawing__is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert (drawing.main(["--check"]), capsys.readouterr().out) == (0, "")
