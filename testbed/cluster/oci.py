"""Writes OCI images (github.com/opencontainers/image-spec, v1) with one uncompressed layer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zlib
from pathlib import Path
from typing import Any

from testbed.cluster import cache

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What uname says -> what an image says."""


def write(archive: Path, name: str, layer: Path, machine: str, settings: dict[str, Any]) -> None:
    """Write the image `name` as an archive that containerd imports.

    `settings` are what the specification calls `config`: Entrypoint, Env, User, ...
    """
    layer_id = f"sha256:{cache.digest(layer)}"
    config = {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [layer_id]},
    }
    config_blob = _encoded(config)
    manifest_blob = _encoded(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config_blob),
            "layers": [{"mediaType": LAYER, "digest": layer_id, "size": layer.stat().st_size}],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
    entry = {**_descriptor(MANIFEST, manifest_blob), "annotations": names}
    index = {"schemaVersion": 2, "manifests": [entry]}
    new = archive.with_name(archive.name + ".new")
    with tarfile.open(new, "w") as tar:
        _add(tar, "oci-layout", _encoded({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", _encoded(index))
        for blob in (config_blob, manifest_blob):
            _add(tar, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        with open(layer, "rb") as file:
            entry_info = tarfile.TarInfo(f"blobs/{layer_id.replace(':', '/')}")
            entry_info.size = layer.stat().st_size
            tar.addfile(entry_info, file)
    new.replace(archive)


_NO_ARCHIVE = (
    tarfile.TarError, EOFError, zlib.error, ValueError, TypeError, KeyError, AttributeError
)  # fmt: skip
"""What a file that is no archive, or a damaged one, raises: a torn gzip header is an `EOFError`."""


def names(archive: Path) -> list[str]:
    """The full image names in an OCI or Docker archive; [] when it has none.

    Raises ValueError when it is no image archive.
    """
    try:
        with tarfile.open(archive) as tar:
            members = {member.name.removeprefix("./"): member for member in tar}
            for member, read in (("index.json", _index_names), ("manifest.json", _docker_names)):
                if member in members and (file := tar.extractfile(members[member])):
                    return read(json.load(file))
    except _NO_ARCHIVE as error:
        raise ValueError(f"{archive} is no image archive") from error
    raise ValueError(f"{archive} is no image archive: it has neither index.json nor manifest.json")


def _index_names(index: dict[str, Any]) -> list[str]:
    found = []
    for entry in index["manifests"]:
        labels = entry.get("annotations") or {}
        name = labels.get("io.containerd.image.name") or labels.get(
            "org.opencontainers.image.ref.name"
        )
        if name and "/" in name:  # else it is a tag alone
            found.append(str(name))
    return found


def _docker_names(manifest: list[dict[str, Any]]) -> list[str]:
    return [str(tag) for entry in manifest for tag in entry.get("RepoTags") or []]


def _encoded(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _descriptor(kind: str, blob: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    return {"mediaType": kind, "digest": digest, "size": len(blob)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
