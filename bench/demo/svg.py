"""Draw the text of a terminal as an SVG: what was printed, nothing added but a title and colours."""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

COLUMNS = 118
LINE_PX, CHARACTER_PX, MARGIN_PX, TITLE_PX = 18, 7.7, 16, 34
COLOURS = (
    (re.compile(r"\b(HUNG|DEADLOCK|LOST_LINK|CRASHED)\b"), "#ff7b72"),
    (re.compile(r"\bculprit\b"), "#ff7b72"),
    (re.compile(r"\b(WORKING|right|Recovered)\b"), "#7ee787"),
    (re.compile(r"\[(sink|edge|time|peers|stack|event)\]"), "#79c0ff"),
    (re.compile(r"\bSLOW\b"), "#e3b341"),
)


def lines_of(text: str) -> list[str]:
    """The lines of a terminal's text without its escapes, long ones cut."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")
    lines = [line.rstrip() for line in plain.split("\n")]
    return [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines]


def coloured(line: str) -> str:
    """One line as SVG text, known words in colour."""
    marks = sorted(
        (match.start(), match.end(), colour)
        for pattern, colour in COLOURS
        for match in pattern.finditer(line)
    )
    out, at = "", 0
    for start, end, colour in marks:
        if start < at:
            continue
        out += escape(line[at:start]) + f'<tspan fill="{colour}">{escape(line[start:end])}</tspan>'
        at = end
    return out + escape(line[at:])


def picture(text: str, title: str) -> str:
    """The whole SVG."""
    lines = lines_of(text.strip("\n"))
    width = int(2 * MARGIN_PX + COLUMNS * CHARACTER_PX)
    height = TITLE_PX + MARGIN_PX + LINE_PX * len(lines)
    rows = "\n".join(
        f'<text x="{MARGIN_PX}" y="{TITLE_PX + LINE_PX * (number + 1)}" xml:space="preserve">'
        f"{coloured(line)}</text>"
        for number, line in enumerate(lines)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="12.8"
 font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" fill="#e6edf3">
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<circle cx="20" cy="18" r="5" fill="#ff5f56"/><circle cx="38" cy="18" r="5" fill="#ffbd2e"/>
<circle cx="56" cy="18" r="5" fill="#27c93f"/>
<text x="50%" y="22" text-anchor="middle" fill="#8b949e">{escape(title)}</text>
{rows}
</svg>
"""


def main() -> None:
    """Read the text of argv[1], write the picture to argv[2], with the title argv[3]."""
    source, target, title = sys.argv[1:4]
    Path(target).write_text(picture(Path(source).read_text(encoding="utf-8"), title), "utf-8")


if __name__ == "__main__":
    main()
