"""Opens the store at the operator's address, S3 or folder."""

from __future__ import annotations

import os
from pathlib import Path

from kcover_ebpf.stores.folder_store import FolderStore
from kcover_ebpf.stores.s3_store import S3Store, credentials_in, credentials_of
from kcover_ebpf.stores.store import PartStore, StoreAddress


def opened(address: StoreAddress, secrets: Path | None = None) -> PartStore:
    """The store, not yet contacted; `secrets`: folder with the credentials, None: use the environment."""
    if address.folder is not None:
        return FolderStore(address.folder)
    if secrets is not None:
        return S3Store(address, lambda: credentials_in(secrets))
    return S3Store(address, lambda: credentials_of(os.environ))
