"""Shows an incident's page as images: screenshots in light and dark mode, and on paper.

python -m tools.page_pictures PAGE.html FOLDER     writes page-light.webp, page-dark.webp, page-whole.png, page.pdf
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from testbed.driver.browser import browser

_WIDTH, _HEIGHT = 1100, 900
_TALLEST = 16_000
"""Most CSS pixels of height, because Chromium's surfaces are limited."""


def main(arguments: list[str]) -> int:
    """The exit code: 1 where the page reports an error, 2 for wrong arguments or without a browser."""
    program = shutil.which("chromium")
    if len(arguments) != 2 or program is None:
        print(__doc__ if program else "no chromium: run `tools/setup test`", file=sys.stderr)
        return 2
    page, folder = map(Path, arguments)
    folder.mkdir(parents=True, exist_ok=True)
    with browser(program) as shown:
        for scheme in ("light", "dark"):
            shown.media(scheme)
            shown.open(page, _WIDTH, _HEIGHT)
            shown.screenshot(folder / f"page-{scheme}.webp")
        shown.media("light")
        height = int(shown.value("document.documentElement.scrollHeight"))
        shown.resize(_WIDTH, min(height, _TALLEST))
        shown.screenshot(folder / "page-whole.png")
        shown.media("light", "print")
        (folder / "page.pdf").write_bytes(shown.pdf())
        errors = [event for event in shown.events if event["method"] == "Runtime.exceptionThrown"]
    for event in errors:
        print(event, file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
