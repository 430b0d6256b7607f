"""Renders a page as one HTML file: no script, no font, no network request; all text is escaped."""

from __future__ import annotations

import time
from importlib import resources

from kcover_ebpf import __version__
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output.formatting import span
from kcover_ebpf.postmortem.page import Page
from kcover_ebpf.tunables.cli import TENTHS_S
from kcover_ebpf.views.rank_grid import CellState

_TEMPLATES = "templates"
_PAGE, _STYLE = "page.html.j2", "page.css"


def html_of(page: Page) -> str:
    """The complete HTML file; raises `UsageError` if Jinja2 is not installed."""
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise UsageError("the page needs Jinja2: pip install 'kcover-ebpf[report]'") from error
    folder = resources.files(__package__).joinpath(_TEMPLATES)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, markupsafe.Markup) else visible(value),
    )
    environment.filters |= {"span": span, "clock": clock, "after": after}
    environment.globals |= {"CellState": CellState, "version": __version__}
    template = environment.from_string(folder.joinpath(_PAGE).read_text(encoding="utf-8"))
    # our own file, the only text that is not escaped
    style = markupsafe.Markup(folder.joinpath(_STYLE).read_text(encoding="utf-8"))
    return template.render(page=page, style=style)


def visible(value: object) -> object:
    """The value with control and direction characters made visible, because names and log lines come from the job."""
    if not isinstance(value, str):
        return value
    return "".join(
        char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in value
    )


def after(seconds: float) -> str:
    """Seconds after (or before) the begin of the fault; with tenths if short enough to be compared."""
    if abs(seconds) < TENTHS_S:
        return f"{seconds:+.1f} s"
    return f"{'+' if seconds > 0 else '-'}{span(abs(seconds))}"


def clock(seconds: float) -> str:
    """Time of day in UTC, with tenths of a second."""
    whole = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 10)} UTC"
