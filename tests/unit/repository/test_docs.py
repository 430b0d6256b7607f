"""Pages that are written from something else are up to date, and links between pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from kcover_ebpf.output.formatting import verdict_object
from tools.docs import links

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "tool",
    [
        "policy_doc",
        "reference_doc",
        "dashboards",
        "hardware_doc",
        "log_rules_doc",
        "inspection_doc",
        "values_doc",
    ],
)
def test_docs__what_is_written_by_a_tool_is_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / f"tools/{tool}.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("page", links.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages__links_lead_to_a_file_or_a_heading(page: Path) -> None:
    assert list(links.broken(page)) == []


def test_misplaced__the_navigation_of_the_site_lists_each_page_once() -> None:
    assert list(links.misplaced()) == []


def test_docs__each_key_of_a_verdict_has_a_row_and_each_row_a_key() -> None:
    page = (ROOT / "docs/json.md").read_text()
    table = page.split("\n## verdict\n")[1].split("\n`trace` adds\n")[0]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(verdict_object(Verdict(VerdictKind.WORKING, Cause.TRAINING)))
