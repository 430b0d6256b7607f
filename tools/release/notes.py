"""Release notes: the section of one version in CHANGELOG.md."""

import re

UNRELEASED = "Unreleased"


def section(changelog: str, name: str) -> str | None:
    """The text below the heading `## [name]`, up to the next such heading; None if there is no such heading."""
    found = re.search(
        rf"^## \[{re.escape(name)}\].*?$(.*?)(?=^## |^\[[^]]+\]: |\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    return found[1].strip() if found else None


def notes(changelog: str, version: str) -> tuple[str, bool]:
    """The notes of a version in Markdown; False if they are those of the unreleased section.

    Raises ValueError if CHANGELOG has neither section, or the section is empty.
    """
    text = section(changelog, version)
    is_final = text is not None
    if text is None:
        text = section(changelog, UNRELEASED)
    if not text:
        raise ValueError(f"CHANGELOG.md has no text below [{version}] nor below [{UNRELEASED}]")
    return f"# kcover-ebpf {version}\n\n{text}\n", is_final
