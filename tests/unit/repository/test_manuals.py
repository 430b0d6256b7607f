"""Manual pages and the page of commands have what --help shows."""

from collections.abc import Callable, Iterator

import click
import pytest

from kcover_ebpf.cli import cli
from kcover_ebpf.cli.kubectl import kubectl
from tools.docs import commands


@click.group(epilog="\b\nExamples:\n  tool run --fast\n  .hidden\n\n\b\nExit codes:\n  0 done")
def tool() -> None:
    """Do a thing.

    Needs root; see
    below.
    """


@tool.command(short_help="Run -n times.")
@click.option("-n", "--number", default=3, show_default=True, help="How often | how long.")
@click.argument("file")
def run(number: int, file: str) -> None:
    """Run FILE."""


@tool.command(hidden=True)
def secret() -> None:
    """Not shown."""


@pytest.fixture
def manuals() -> dict[str, commands.Manual]:
    made = commands.manuals_of(tool, click.Context(tool, info_name="my tool"))
    return {manual.file: manual for manual in made}


def test_manuals_of__each_command_that_is_not_hidden(manuals: dict[str, commands.Manual]) -> None:
    assert set(manuals) == {"my-tool.1", "my-tool-run.1"}
    group, command = manuals["my-tool.1"], manuals["my-tool-run.1"]
    assert group.about == ("Do a thing.", "Needs root; see below.")
    assert group.commands == (("run", "Run -n times."),)
    assert group.sections == (
        ("Examples", "tool run --fast\n.hidden"),
        ("Exit codes", "0 done"),
    )
    assert (command.name, command.synopsis) == ("my tool run", "[OPTIONS] FILE")
    assert command.options[0] == (
        "-n, --number INTEGER",
        "How often | how long.  [default: 3]",
    )


def test_manual_page(manuals: dict[str, commands.Manual]) -> None:
    page = commands.manual_page(manuals["my-tool.1"])
    assert page.startswith('.TH "MY\\-TOOL" 1 ""')
    assert ".SH COMMANDS\n.TP\n.B run\nRun \\-n times." in page
    assert ".SH EXAMPLES\n.nf\ntool run \\-\\-fast\n\\&.hidden\n.fi" in page
    assert ".SH SEE ALSO\n.BR my\\-tool\\-run (1)" in page


@pytest.mark.parametrize(
    ("text", "expected"), [("a-b", "a\\-b"), ("'x\n.y", "\\&'x\n\\&.y"), ("a\\b", "a\\eb")]
)
def test_roff(text: str, expected: str) -> None:
    assert commands.roff(text) == expected


@pytest.mark.parametrize(
    ("make", "text", "expected"),
    [
        (commands.escaped, "<a> *b* [c]", "\\<a\\> \\*b\\* \\[c\\]"),
        (commands.cell, "a|b", "a\\|b"),
    ],
)
def test_manuals__markdown(make: Callable[[str], str], text: str, expected: str) -> None:
    assert make(text) == expected


def test_page__has_every_command_of_both_programs() -> None:
    page = commands.page()
    for manual in commands.manuals():
        assert f"\n## {manual.name}\n" in page
    assert "| `--max-restarts INTEGER RANGE` |" in page


def test_manuals__the_end_of_every_help_text_is_in_the_manual() -> None:
    found = {manual.name: manual for manual in commands.manuals()}
    ends = [
        (name, line)
        for name, epilog in epilogs()
        for line in epilog.split("\n")
        if line.strip("\b ")
    ]
    assert ends
    missing = [
        (name, line)
        for name, line in ends
        if not any(line.strip() in f"{title}:\n{text}" for title, text in found[name].sections)
    ]
    assert missing == []


def test_manuals__every_command_shows_examples_and_exit_codes() -> None:
    # the verbs of kubectl share those of their program
    shown = {name: text for name, text in epilogs() if not name.startswith("kubectl kcover ")}
    lacking = [
        (name, title)
        for name, text in shown.items()
        for title in ("Examples:", "Exit codes:")
        if title not in text
    ]
    assert lacking == []


def epilogs() -> Iterator[tuple[str, str]]:
    for program, name in ((cli, "kcover-ebpf"), (kubectl, "kubectl kcover")):
        yield name, program.epilog or ""
        for text in program.list_commands(click.Context(program)):
            command = program.get_command(click.Context(program), text)
            assert command is not None
            yield f"{name} {text}", command.epilog or ""
