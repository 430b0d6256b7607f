"""Packs a Helm chart as `helm package` does, but byte-identical for the same files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tools.release import archive


@dataclass(frozen=True)
class Image:
    """Location of the published image: `repository` without a tag, `digest` as sha256:..."""

    repository: str
    digest: str


def pack(chart: Path, target: Path, epoch_s: int, image: Image | None = None) -> None:
    """Write the chart in folder `chart` to `target` (.tgz); all files have the time `epoch_s` (seconds since 1970).

    If an image is given, the packed values refer to it by digest.
    """
    patterns = [line.strip("/") for line in (chart / ".helmignore").read_text().split()]
    entries = [
        archive.entry(f"{chart.name}/{path.relative_to(chart)}", path)
        for path in wanted(chart, patterns)
    ]
    if image is not None:
        values = f"{chart.name}/values.yaml"
        entries = [
            archive.Entry(values, pinned(entry.content.decode(), image).encode())
            if entry.name == values
            else entry
            for entry in entries
        ]
    archive.write(target, entries, epoch_s)


def pinned(values: str, image: Image) -> str:
    """The text of values.yaml with the image's repository and digest; raises ValueError if it lacks these lines."""
    for key, value in (("repository", image.repository), ("digest", image.digest)):
        values, count = re.subn(rf"^  {key}: .*$", f"  {key}: {value}", values, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"values.yaml has {count} lines with image.{key}, expected one")
    return values


def wanted(chart: Path, patterns: Sequence[str]) -> list[Path]:
    """The files for the package, Chart.yaml first."""

    def is_ignored(path: Path) -> bool:
        parts = path.relative_to(chart).parts
        return any(fnmatch(part, pattern) for part in parts for pattern in patterns)

    files = (path for path in chart.rglob("*") if path.is_file() and not is_ignored(path))
    return sorted(files, key=lambda path: (path.name != "Chart.yaml" or path.parent != chart, path))
