"""Pages that are written from something else are up to date, and links between pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "tool",
    [
        "policy_doc",
        "reference_doc",
        "dashboards",
        "hardware_doc",
        "log_rules_doc",
        "inspection_doc",
    ],
)
def test_what_is_written_by_a_tool_is_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / f"tools/{tool}.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(page: Path) -> None:
    missing = [
        f"{file}#{anchor}"
        for file, anchor in ANCHOR.findall(page.read_text())
        if anchor not in headings(page.parent / file if file else page)
    ]
    assert missing == []


def headings(page: Path) -> set[str]:
    """Anchors that a page's headings get: lower case, hyphens for spaces, no punctuation."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
