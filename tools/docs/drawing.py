"""Draws docs/images/architecture.svg from tools/docs/architecture.toml.

python -m tools.docs.drawing            writes it
python -m tools.docs.drawing --check    shows whether it is up to date, and exits 1 if not
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tools/docs/architecture.toml"
TARGET = ROOT / "docs/images/architecture.svg"
# All in pixels of the drawing.
COLUMN, BOX, LANE, HEIGHT, LEFT, TOP = 186, 142, 150, 100, 12, 48
LINE, TITLE_Y = 16, 28
STYLE = """
svg { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328; }
.page { fill: #ffffff; } .lane { fill: #f3f6fa; } .box { fill: #ffffff; stroke: #57606a; }
.title { font-size: 16px; font-weight: 600; } .name { font-weight: 600; fill: #57606a; }
.where { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 10.5px; fill: #0a5bc4; }
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#head); }
.label { font-size: 11px; font-style: italic; fill: #57606a; }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """One step; `x` and `y` are its upper left corner in pixels."""

    x: int
    y: int
    text: Sequence[str]
    where: Sequence[str]

    @property
    def middle(self) -> int:
        """The x of its middle."""
        return self.x + BOX // 2


def boxes(source: Mapping[str, Any]) -> dict[str, Box]:
    """Box id -> box, from the TOML source."""
    lanes = [lane["id"] for lane in source["lanes"]]
    return {
        entry["id"]: Box(
            x=LEFT + 14 + COLUMN * entry["column"],
            y=TOP + LANE * lanes.index(entry["lane"]) + (LANE - HEIGHT) // 2 + 6,
            text=entry["text"],
            where=entry.get("where", ()),
        )
        for entry in source["boxes"]
    }


def drawn_box(box: Box) -> Iterator[str]:
    """A box with its text, the modules below it."""
    yield f'<rect class="box" x="{box.x}" y="{box.y}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
    y = box.y + 22
    for line in box.text:
        yield f'<text x="{box.middle}" y="{y}" text-anchor="middle">{escape(line)}</text>'
        y += LINE
    y = box.y + HEIGHT - 10 - (len(box.where) - 1) * 13
    for name in box.where:
        yield (
            f'<text class="where" x="{box.middle}" y="{y}" text-anchor="middle">'
            f"{escape(name)}</text>"
        )
        y += 13


def drawn_arrow(start: Box, end: Box, label: str) -> Iterator[str]:
    """An arrow to the right in a lane, up or down in a column, or up with a bend between two lanes."""
    if start.y == end.y:
        y = start.y + HEIGHT // 2
        path, at = (
            f"M{start.x + BOX} {y} H{end.x - 2}",
            ((start.x + BOX + end.x) // 2 - 3, y - 6, "middle"),
        )
    elif start.x == end.x:
        down = end.y > start.y
        first, last = (start.y + HEIGHT, end.y - 2) if down else (start.y, end.y + HEIGHT + 2)
        path = f"M{start.middle} {first} V{last}"
        at = (start.middle + 6, (first + last) // 2 + 4, "start")
    else:
        from_x, bend = start.x + BOX // 4, start.y - (LANE - HEIGHT) // 2
        path = f"M{from_x} {start.y} V{bend} H{end.middle} V{end.y + HEIGHT + 2}"
        at = (end.middle + 6, bend - 4, "start")
    yield f'<path class="arrow" d="{path}"/>'
    if label:
        yield f'<text class="label" x="{at[0]}" y="{at[1]}" text-anchor="{at[2]}">{escape(label)}</text>'


def drawing(source: Mapping[str, Any]) -> str:
    """The whole SVG."""
    placed = boxes(source)
    width = max(box.x for box in placed.values()) + BOX + 14 + LEFT
    height = TOP + LANE * len(source["lanes"]) + LEFT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(source['title'])}</title>",
        f"<!-- Drawn by tools/docs/drawing.py from {SOURCE.name}: change that. -->",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" orient="auto">',
        '<path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        f'<rect class="page" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="{TITLE_Y}">{escape(source["title"])}</text>',
    ]
    for number, lane in enumerate(source["lanes"]):
        y = TOP + LANE * number
        out.append(
            f'<rect class="lane" x="{LEFT}" y="{y}" width="{width - 2 * LEFT}" height="{LANE - 8}" rx="8"/>'
        )
        out.append(
            f'<text class="name" x="{LEFT + 14}" y="{y + 18}">{escape(lane["title"])}</text>'
        )
    for box in placed.values():
        out += drawn_box(box)
    for arrow in source["arrows"]:
        out += drawn_arrow(placed[arrow["from"]], placed[arrow["to"]], arrow.get("label", ""))
    return "\n".join([*out, "</svg>"]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the drawing, or compare it."""
    made = drawing(tomllib.loads(SOURCE.read_text()))
    if "--check" not in arguments:
        TARGET.write_text(made)
        return 0
    if TARGET.read_text() == made:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is not up to date: run python -m tools.docs.drawing")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
