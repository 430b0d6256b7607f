"""The image as an OCI archive: its digest, and a byte-identical file for the same image."""

import json
import tarfile
from pathlib import Path

from tools.release.archive import Entry, write


def digest_of(archive: Path) -> str:
    """sha256:... of the manifest of the only image in an OCI archive; raises ValueError if it is not one."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        found = json.loads(index.read())["manifests"] if index else []
    if len(found) != 1:
        raise ValueError(f"{archive.name} has {len(found)} images, expected one")
    return str(found[0]["digest"])


def pack(archive: Path, target: Path, epoch_s: int) -> None:
    """Repack an OCI archive; all files get the time `epoch_s` (seconds since 1970) instead of the creation time."""
    with tarfile.open(archive) as opened:
        files = sorted((file for file in opened if file.isfile()), key=lambda file: file.name)
        contents = ((file.name, opened.extractfile(file)) for file in files)
        entries = [Entry(name, content.read()) for name, content in contents if content]
    write(target, entries, epoch_s)
