"""Checks the links of the documentation: `make check` runs it, and needs nothing but Python for it.

python -m tools.docs.links     one line for each link that leads nowhere; exits 1 if there is one

The pages are those of the site, and those that are read in the repository only. A link to a file must lead
to a file of the repository, one to a heading to a heading, and the navigation in mkdocs.yml must
list each page of the site once, by itself or with its folder. `make docs` builds the site.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages outside docs/, and their names in the site.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# Read in the repository only.
NOT_IN_SITE = (
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    *(f"{tree}/*/README.md" for tree in ("bench", "charts", "contrib", "testbed", "tools")),
)
# Written while the site is built.
GENERATED = {"commands.md"}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
SCHEME = re.compile(r"[a-z]+:")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
NAVIGATION = re.compile(r"^ +- (?:.+: )?([\w./-]+(?:\.md|/))$", re.MULTILINE)


def pages(root: Path = ROOT) -> list[Path]:
    """Every page: those at the top, all of docs/, and the README of each tool."""
    others = sorted(page for pattern in NOT_IN_SITE for page in root.glob(pattern))
    return [*(root / name for name in OUTSIDE), *others, *sorted((root / "docs").rglob("*.md"))]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings: lower case, hyphens for spaces, no punctuation."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead to no file or no heading."""
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if SCHEME.match(link):
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link


def misplaced(root: Path = ROOT) -> Iterator[str]:
    """Pages that the navigation omits or lists twice, and entries without a page."""
    folder = root / "docs"
    listed: Counter[str] = Counter()
    for entry in NAVIGATION.findall((root / "mkdocs.yml").read_text()):
        listed.update(in_folder(folder, entry) if entry.endswith("/") else [entry])
    wanted = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    wanted |= set(OUTSIDE.values()) | GENERATED
    yield from (f"{page} is not in the navigation" for page in sorted(wanted - set(listed)))
    yield from (f"{page} does not exist" for page in sorted(set(listed) - wanted))
    yield from (f"{page} is listed {n} times" for page, n in listed.items() if n > 1)


def in_folder(docs: Path, folder: str) -> list[str]:
    """The pages of a folder of docs/, its README first."""
    names = sorted(str(path.relative_to(docs)) for path in (docs / folder).glob("*.md"))
    return sorted(names, key=lambda name: not name.endswith("README.md"))


def main() -> int:
    """Print each fault; 1 if there is one."""
    found = [
        f"{page.relative_to(ROOT)}: {link} leads nowhere"
        for page in pages()
        for link in broken(page)
    ]
    found += [f"mkdocs.yml: {text}" for text in misplaced()]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
