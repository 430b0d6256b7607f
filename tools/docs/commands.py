"""The commands as click knows them: manual pages (make docs, the wheel) and the site's page of commands.

python -m tools.docs.commands man FOLDER    writes a manual page for each command into FOLDER
"""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kcover_ebpf import __version__

PROGRAMS = ("kcover-ebpf", "kubectl kcover")


@dataclass(frozen=True, slots=True)
class Manual:
    """One command, with what its --help shows.

    `about` and the texts of `sections` are paragraphs and lines as in --help; `summary` is one line.
    """

    name: str
    summary: str
    synopsis: str
    about: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]
    sections: tuple[tuple[str, str], ...]

    @property
    def file(self) -> str:
        """File name of the page."""
        return self.name.replace(" ", "-") + ".1"


def manuals() -> Iterator[Manual]:
    """Every command of both programs, each program first."""
    from kcover_ebpf.cli import cli
    from kcover_ebpf.cli.kubectl import kubectl

    for name, program in zip(PROGRAMS, (cli, kubectl), strict=True):
        yield from manuals_of(program, click.Context(program, info_name=name))


def manuals_of(command: click.Command, context: click.Context) -> Iterator[Manual]:
    """A command and its subcommands."""
    below = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                below.append((name, found))
    records = (
        param.get_help_record(context)
        for param in command.get_params(context)
        if not isinstance(param, click.Argument)
    )
    yield Manual(
        name=context.command_path,
        summary=command.get_short_help_str(limit=200).rstrip("."),
        synopsis=" ".join(command.collect_usage_pieces(context)),
        about=paragraphs(command.help or ""),
        options=tuple(record for record in records if record is not None),
        commands=tuple((name, found.get_short_help_str(limit=200)) for name, found in below),
        sections=tuple(sections(command.epilog or "")),
    )
    for name, found in below:
        yield from manuals_of(found, click.Context(found, info_name=name, parent=context))


def paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a help text, each on one line."""
    whole = inspect.cleandoc(text).partition("\f")[0]
    return tuple(" ".join(part.split()) for part in re.split(r"\n\s*\n", whole) if part.strip())


def sections(epilog: str) -> Iterator[tuple[str, str]]:
    """Titles and lines of the sections of an epilog; a section begins with a line that ends in a colon."""
    for part in epilog.split("\b\n"):
        title, colon, lines = part.strip("\n").partition(":\n")
        if colon:
            yield title, inspect.cleandoc("\n" + lines)


# ---- manual pages


def roff(text: str) -> str:
    """Text for troff: hyphens that can be copied, and no line that troff reads as a request."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.MULTILINE)


def manual_page(manual: Manual) -> str:
    """The page in troff; it contains no date, so that equal sources give equal pages."""
    title = manual.file.removesuffix(".1").upper()
    out = [f'.TH "{roff(title)}" 1 "" "kcover\\-ebpf {__version__}" "kcover\\-ebpf"']
    out += [".SH NAME", f"{roff(manual.file.removesuffix('.1'))} \\- {roff(manual.summary)}"]
    out += [".SH SYNOPSIS", f".B {roff(manual.name)}", roff(manual.synopsis)]
    out += [".SH DESCRIPTION", *(line for text in manual.about for line in (".PP", roff(text)))]
    for heading, rows in (("COMMANDS", manual.commands), ("OPTIONS", manual.options)):
        if rows:
            out += [f".SH {heading}"]
            out += [line for term, text in rows for line in (".TP", f".B {roff(term)}", roff(text))]
    for heading, lines in manual.sections:
        out += [f".SH {heading.upper()}", ".nf", roff(lines), ".fi"]
    others = see_also(manual)
    if others:
        out += [".SH SEE ALSO", ",\n".join(f".BR {roff(other)} (1)" for other in others)]
    return "\n".join(out) + "\n"


def see_also(manual: Manual) -> list[str]:
    """Names of the pages of subcommands, or of the parent command."""
    base = manual.file.removesuffix(".1")
    if manual.commands:
        return [f"{base}-{name}" for name, _ in manual.commands]
    return [program.replace(" ", "-") for program in PROGRAMS if manual.name.startswith(program)]


def write_manual_pages(folder: Path) -> None:
    """Write every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for manual in manuals():
        (folder / manual.file).write_text(manual_page(manual))


# ---- the site's page


def page() -> str:
    """The page of all commands, in Markdown."""
    out = [
        "# Commands",
        "",
        "What `--help` shows, for every command; the manual pages show the same.",
        "",
    ]
    for manual in manuals():
        out += [
            f"## {manual.name}",
            "",
            *(line for text in manual.about for line in (escaped(text), "")),
        ]
        out += ["```", f"{manual.name} {manual.synopsis}", "```", ""]
        for title, rows in (("command", manual.commands), ("option", manual.options)):
            if rows:
                out += [f"| {title} | |", "|---|---|"]
                out += [f"| `{cell(term)}` | {cell(escaped(text))} |" for term, text in rows]
                out += [""]
        for title, lines in manual.sections:
            out += [f"{title}:", "", "```", lines, "```", ""]
    return "\n".join(out)


def escaped(text: str) -> str:
    """Plain text for Markdown."""
    return re.sub(r"([*_<>\[\]`])", r"\\\1", text)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write the manual pages; 2 for wrong usage."""
    if len(arguments) != 2 or arguments[0] != "man":
        print("usage: python -m tools.docs.commands man FOLDER", file=sys.stderr)
        return 2
    write_manual_pages(Path(arguments[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
