"""The store at an address."""

from __future__ import annotations

import os
from pathlib import Path

from kcover_ebpf.stores.folder_store import FolderStore
from kcover_ebpf.stores.s3_store import S3Store, credentials_in, credentials_of
from kcover_ebpf.stores.store import PartStore, StoreAddress


def opened(address: StoreAddress, secrets: Path | None = None) -> PartStore:
    """Nothing is asked of it yet; `secrets`: the folder with the credentials, None: the environment has them."""
    if address.folder is not None:
        return FolderStore(address.folder)
    if secrets is not None:
        return S3Store(address, lambda: credentials_in(secrets))
    return S3Store(address, lambda: credentials_of(os.environ))
