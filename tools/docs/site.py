"""What mkdocs does to our pages beyond its own work; mkdocs.yml names this file under `hooks`.

Adds the pages outside docs/ and the generated page of commands, lists the pages of the folders in
the navigation, and points links at what the site has. A link to a file that is no page leads into the
repository. The environment's KCOVER_REPOSITORY may replace its URL; if it is empty, the link becomes the file's name.
"""

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs loads a hook by its path

from tools.docs import commands, links  # noqa: E402
from tools.pages import REPOSITORY  # noqa: E402

LABELLED = re.compile(r"\[([^]]*)\]\(([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Replace folders in the navigation by lists of their pages."""
    config["nav"] = expanded(config["nav"], Path(config["docs_dir"]))
    return config


def expanded(nav: Any, docs: Path) -> Any:
    """The navigation with each folder ("decisions/") as the list of its pages."""
    if isinstance(nav, list):
        return [expanded(item, docs) for item in nav]
    if isinstance(nav, dict):
        return {title: expanded(item, docs) for title, item in nav.items()}
    return links.in_folder(docs, nav) if nav.endswith("/") else nav


def on_files(files: Any, config: Any) -> Any:
    """Add pages from outside docs/."""
    from mkdocs.structure.files import File

    for source, name in links.OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "commands.md", content=commands.page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Change the links of a page to pages of the site."""
    name = page.file.src_uri
    source = next((key for key, value in links.OUTSIDE.items() if value == name), f"docs/{name}")
    return relinked(
        markdown, source, os.environ.get("KCOVER_REPOSITORY", f"{REPOSITORY}/blob/main")
    )


def relinked(text: str, source: str, repository: str | None) -> str:
    """The text of the page at `source` with links for the site; `repository` None: its URL is unknown."""
    folder = posixpath.dirname(links.OUTSIDE.get(source, source.removeprefix("docs/")))

    def replaced(found: re.Match[str]) -> str:
        label, link = found.groups()
        file, mark, anchor = link.partition("#")
        if links.SCHEME.match(link) or not file:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
            path += "/README.md"
        target = links.OUTSIDE.get(path) or path.removeprefix("docs/")
        if path in links.OUTSIDE or path.startswith("docs/"):
            is_page = not (ROOT / path).is_dir() and not path.endswith((".json", ".jsonl"))
        else:
            is_page = False
        if is_page:
            return f"[{label}]({posixpath.relpath(target, folder or '.')}{mark}{anchor})"
        if repository:
            return f"[{label}]({repository.rstrip('/')}/{path}{mark}{anchor})"
        return label if path.rpartition("/")[2] in label else f"{label} (`{path}`)"

    return LABELLED.sub(replaced, text)
