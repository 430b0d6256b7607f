"""The image as an OCI archive: the digest by which it is pulled."""

import json
import tarfile
from pathlib import Path


def digest_of(archive: Path) -> str:
    """sha256:... of the manifest of the only image in an OCI archive; raises ValueError where it is none."""
    with tarfile.open(archive) as opened:
        index = opened.extractfile("index.json")
        found = json.loads(index.read())["manifests"] if index else []
    if len(found) != 1:
        raise ValueError(f"{archive.name} has {len(found)} images, expected one")
    return str(found[0]["digest"])
