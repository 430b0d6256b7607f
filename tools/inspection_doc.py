"""Writes the table of checks in docs/inspection.md from the registry.

python tools/inspection_doc.py           writes it
python tools/inspection_doc.py --check   says whether it is up to date, and exits 1 if not
"""

import sys
from collections.abc import Iterator

from kcover_ebpf.inspection.registry import CHECKS
from tools.pages import ROOT, keep

PAGE = ROOT / "docs/inspection.md"
BEGIN = "<!-- Written by tools/inspection_doc.py from kcover_ebpf/inspection: change that. -->\n"
END = "<!-- Until here. -->\n"


def table() -> Iterator[str]:
    """Rows of the table, one per check."""
    yield "| check | cost | deadline | examines | source |"
    yield "|---|---|---|---|---|"
    for check in CHECKS:
        yield (
            f"| `{check.name}` | {check.cost.value} | {check.deadline_s:g} s | {check.examines} "
            f"| {check.source} |"
        )


def main(arguments: list[str]) -> int:
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    page = head + BEGIN + "\n" + "\n".join(table()) + "\n\n" + END + tail
    return keep({PAGE: page}, arguments, "tools/inspection_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
