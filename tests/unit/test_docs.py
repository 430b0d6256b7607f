"""Pages that are written from something else are up to date, and links between pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
