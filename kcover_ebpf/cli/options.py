"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., object])


def output_option(
    explained: str = "json: one object on one line.", more: tuple[str, ...] = ()
) -> Callable[[_Command], _Command]:
    """`-o text|json`; `more` are further formats."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", "json", *more]),
        default="text",
        show_default=True,
        help=explained,
    )
