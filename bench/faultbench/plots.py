"""Two plots as SVG text, written by hand so that the same data always give the same bytes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from bench.faultbench.figures import Record, valid_faults

COLOURS = {0.2: "#1b6ca8", 0.5: "#4b8b3b", 2.0: "#c46210", 10.0: "#8e2a5b"}
OTHER_COLOUR = "#555555"
LEFT, RIGHT, TOP, ROW = 200, 30, 50, 16
WIDTH = 860
LOW_S, HIGH_S = 0.03, 100.0
TICKS_S = (0.1, 0.3, 1, 3, 10, 30, 100)


def x_of(seconds: float) -> float:
    """The place of a time on the logarithmic axis, in pixels."""
    inside = min(max(seconds, LOW_S), HIGH_S)
    part = math.log(inside / LOW_S) / math.log(HIGH_S / LOW_S)
    return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 11) -> str:
    """A piece of text."""
    style = f'font-size="{size}" text-anchor="{anchor}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>'


def frame(height: float, title: str, body: Sequence[str], bottom: float) -> str:
    """The drawing with its title, time axis and grid."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" font-family="sans-serif" fill="#222">'
    )
    grid = []
    for tick in TICKS_S:
        x = x_of(tick)
        grid.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#ddd"/>')
        grid.append(text(x, bottom + 16, f"{tick:g} s", "middle"))
    white = '<rect width="100%" height="100%" fill="#fff"/>'
    parts = [head, white, text(LEFT, 18, title, size=14), *grid, *body, "</svg>"]
    return "\n".join(parts) + "\n"


def legend(records: Sequence[Record]) -> list[str]:
    """Which colour is which step length."""
    parts = []
    for place, step_s in enumerate(sorted({r["step_s"] for r in records})):
        x = LEFT + 110 * place
        parts.append(f'<circle cx="{x}" cy="34" r="4" fill="{colour(step_s)}"/>')
        parts.append(text(x + 8, 38, f"{step_s:g} s steps"))
    return parts


def colour(step_s: float) -> str:
    """The colour of a step length."""
    return COLOURS.get(step_s, OTHER_COLOUR)


def latency_by_scenario(records: Sequence[Record]) -> str:
    """One row per fault, one dot per run: time from onset to verdict; a cross was missed."""
    faults = valid_faults(records)
    names = sorted({r["scenario"] for r in faults})
    bottom = TOP + ROW * len(names)
    body = legend(faults)
    for row, name in enumerate(names):
        y = TOP + ROW * row + ROW / 2
        held_out = any(r["held_out"] for r in faults if r["scenario"] == name)
        body.append(text(LEFT - 10, y + 4, name + (" *" if held_out else ""), "end"))
        for record in sorted((r for r in faults if r["scenario"] == name), key=lambda r: r["name"]):
            body.append(mark(record, y))
    body.append(
        text(LEFT, bottom + 36, "* held out of tuning; x = no right verdict; hollow: wrong rank")
    )
    return frame(bottom + 50, "From the onset of the fault to the verdict", body, bottom)


def mark(record: Record, y: float) -> str:
    """A run's dot, or its cross at the right edge."""
    paint = colour(record["step_s"])
    if record["latency_s"] is None:
        x = WIDTH - RIGHT + 10.0
        return f'<path d="M{x - 4} {y - 4}l8 8m0 -8l-8 8" stroke="{paint}" stroke-width="2"/>'
    fill = "none" if record["rank_right"] is False else paint
    x = x_of(record["latency_s"])
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{fill}" stroke="{paint}" fill-opacity="0.7"/>'


def latency_curves(records: Sequence[Record], announced: frozenset[str]) -> str:
    """Share of faults detected within a time, per step length; dashed: announced faults."""
    height, bottom = 360.0, 310.0
    faults = valid_faults(records)
    body = legend(faults)
    for percent in (0, 25, 50, 75, 100):
        y = bottom - (bottom - TOP) * percent / 100
        body.append(text(LEFT - 10, y + 4, f"{percent} %", "end"))
        body.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#eee"/>')
    for step_s in sorted({r["step_s"] for r in faults}):
        for is_announced in (False, True):
            group = [
                r
                for r in faults
                if r["step_s"] == step_s and (r["scenario"] in announced) == is_announced
            ]
            if group:
                body.append(curve(group, bottom, colour(step_s), "6 4" if is_announced else "none"))
    body.append(
        text(LEFT, bottom + 36, "solid: silent faults; dashed: faults that the kernel announces")
    )
    return frame(height, "Share of faults detected within a time", body, bottom)


def curve(group: Sequence[Record], bottom: float, paint: str, dash: str) -> str:
    """A step curve over the sorted latencies; missed runs keep it below 100 %."""
    times = sorted(r["latency_s"] for r in group if r["latency_s"] is not None)
    path = f"M{LEFT} {bottom}"
    for count, seconds in enumerate(times, start=1):
        y = round(bottom - (bottom - TOP) * count / len(group), 1)
        path += f"H{x_of(seconds)}V{y}"
    path += f"H{WIDTH - RIGHT}"
    style = f'fill="none" stroke="{paint}" stroke-width="2" stroke-dasharray="{dash}"'
    return f'<path d="{path}" {style}/>'
