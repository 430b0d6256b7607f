"""Generated pages: writes them, or compares them with the present ones (`--check`); shared by all generators."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/kcover-io/kcover-ebpf"
DATA = ROOT / ".bench/data"
"""Raw results of bench runs. Git ignores them, `make release` packs them; docs/bench contains
tables derived from them."""


def data_file(name: str) -> Path:
    """A file in `DATA` that a bench writes; creates its folder."""
    DATA.mkdir(parents=True, exist_ok=True)
    return DATA / name


def keep(pages: Mapping[Path, str], arguments: Collection[str], tool: str) -> int:
    """Exit code: 1 if `--check` was given and a page differs from the output of `tool`. Prose is wrapped."""
    from tools.docs.wrap import wrapped

    pages = {page: wrapped(text) if page.suffix == ".md" else text for page, text in pages.items()}
    if "--check" not in arguments:
        for page, text in pages.items():
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
        return 0
    stale = [page for page, text in pages.items() if page.read_text(encoding="utf-8") != text]
    for page in stale:
        print(f"{page.relative_to(ROOT)} is not up to date: run python {tool}")
    return 1 if stale else 0
