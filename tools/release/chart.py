"""Packs a Helm chart as `helm package` does, but the same files always give the same bytes."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tools.release import archive


def pack(chart: Path, target: Path, epoch_s: int) -> None:
    """Write the chart in the folder `chart` to `target` (.tgz), all times being `epoch_s` (seconds since 1970)."""
    patterns = [line.strip("/") for line in (chart / ".helmignore").read_text().split()]
    files = wanted(chart, patterns)
    named = ((f"{chart.name}/{path.relative_to(chart)}", path) for path in files)
    archive.write(target, named, epoch_s)


def wanted(chart: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that belong into the package, Chart.yaml first."""

    def is_ignored(path: Path) -> bool:
        parts = path.relative_to(chart).parts
        return any(fnmatch(part, pattern) for part in parts for pattern in patterns)

    files = (path for path in chart.rglob("*") if path.is_file() and not is_ignored(path))
    return sorted(files, key=lambda path: (path.name != "Chart.yaml" or path.parent != chart, path))
