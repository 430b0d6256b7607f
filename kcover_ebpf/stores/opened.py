"""Opens the store at the operator's address: S3, or a mounted folder, a volume of the cluster or a file server."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kcover_ebpf.errors import StoreError
from kcover_ebpf.stores.s3_store import S3Store, credentials_in, credentials_of
from kcover_ebpf.stores.store import PartStore, StoreAddress


class FolderStore:
    """A `PartStore` in a folder. Files appear atomically: a reader never sees an incomplete one."""

    def __init__(self, folder: Path) -> None:
        """`folder` must exist: if a volume is not mounted, no folder may be created on the node instead."""
        self._folder = folder

    def put(self, key: str, content: bytes) -> bool:
        """Store a part; False if the key exists already, which stays unchanged. Raises `StoreError`."""
        path = self._folder / key
        try:
            if not self._folder.is_dir():
                raise StoreError(f"{self._folder} is not a folder: is the volume mounted?")
            if path.exists():
                return False
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            descriptor, draft = tempfile.mkstemp(prefix=".part-", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    os.fchmod(file.fileno(), 0o640)
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(draft).rename(path)
            except OSError:
                Path(draft).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error
        return True

    def get(self, key: str, most_bytes: int) -> bytes | None:
        """The content; None if the key does not exist. Raises `StoreError`, also if it exceeds `most_bytes`."""
        path = self._folder / key
        try:
            with path.open("rb") as file:
                content = file.read(most_bytes + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        if len(content) > most_bytes:
            raise StoreError(f"{path} is larger than {most_bytes >> 20} MiB")
        return content


def opened(address: StoreAddress, secrets: Path | None = None) -> PartStore:
    """The store, not yet contacted; `secrets`: folder with the credentials, None: use the environment."""
    if address.folder is not None:
        return FolderStore(address.folder)
    if secrets is not None:
        return S3Store(address, lambda: credentials_in(secrets))
    return S3Store(address, lambda: credentials_of(os.environ))
