"""Packs a Helm chart as `helm package` does, but the same files always give the same bytes."""

import gzip
import io
import tarfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path


def pack(chart: Path, target: Path, epoch_s: int) -> None:
    """Write the chart in the folder `chart` to `target` (.tgz), all times being `epoch_s` (seconds since 1970)."""
    patterns = [line.strip("/") for line in (chart / ".helmignore").read_text().split()]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in wanted(chart, patterns):
            entry = tarfile.TarInfo(f"{chart.name}/{path.relative_to(chart)}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch_s, 0o644
            with open(path, "rb") as content:
                archive.addfile(entry, content)
    target.write_bytes(gzip.compress(raw.getvalue(), mtime=epoch_s))


def wanted(chart: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that belong into the package, Chart.yaml first."""

    def is_ignored(path: Path) -> bool:
        return any(
            fnmatch(part, each) for part in path.relative_to(chart).parts for each in patterns
        )

    files = (path for path in chart.rglob("*") if path.is_file() and not is_ignored(path))
    return sorted(files, key=lambda path: (path.name != "Chart.yaml" or path.parent != chart, path))
