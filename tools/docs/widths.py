"""Which pages of the site scroll sideways: `python -m tools.docs.widths [FOLDER]`, after `make docs`.

Each page at a phone's and at a desk's width. With FOLDER, a screenshot of each page of `_SHOWN` is put there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from testbed.driver.browser import Browser, browser

_SITE = Path(__file__).resolve().parents[2] / "build/site"
_SCREENS = {"phone": (390, 844), "desk": (1440, 900)}
"""Width and height in CSS pixels."""
_SHOWN = ("index", "install", "tutorial", "bench/costbench")
_WIDE = """[document.scrollingElement, ...document.querySelectorAll('pre, pre code, table')]
.filter(part => part.scrollWidth > part.clientWidth + 1)
.map(part => part.tagName + ' ' + part.scrollWidth + ' of ' + part.clientWidth)"""


def sideways(page: Browser, file: Path, screen: str) -> Iterator[str]:
    """What of a page is wider than its place, in words."""
    width, height = _SCREENS[screen]
    page.open(file, width, height)
    page.resize(width, height, is_phone=screen == "phone")
    for part in page.value(_WIDE):
        yield f"{screen}: {file.relative_to(_SITE)}: {part}"


def main(arguments: list[str]) -> int:
    """The exit code: 1 where a page scrolls sideways, 2 without a browser or a site."""
    program = shutil.which("chromium")
    files = sorted(_SITE.rglob("*.html"))
    if program is None or not files or len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    found: list[str] = []
    with browser(program) as page:
        for screen in _SCREENS:
            for file in files:
                found += sideways(page, file, screen)
                name = file.relative_to(_SITE).with_suffix("").as_posix()
                if arguments and name in _SHOWN:
                    target = Path(arguments[0]) / f"{screen}-{name.replace('/', '-')}.png"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    page.screenshot(target)
    print("\n".join([*found, f"{len(files)} pages, {len(found)} parts scroll sideways"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
