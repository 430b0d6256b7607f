"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "127.0.0.1") -> None:
    """One of its own authority, for an address."""
    folder.mkdir(exist_ok=True)
    what = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=api"]
    files = ["-keyout", "key.pem", "-out", "ca.crt", "-addext", f"subjectAltName=IP:{name}"]
    subprocess.run(["openssl", *what, *files], cwd=folder, check=True, capture_output=True)
