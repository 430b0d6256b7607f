"""Checksums, and their signature by an SSH key.

ssh-keygen is on every Debian and most other machines, so neither the one who signs nor the one who
verifies needs another program.
"""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

SUMS, NAMESPACE = "SHA256SUMS", "kcover-ebpf-release"


class SigningFailed(Exception):
    """The text says why, in one line."""


def write_sums(folder: Path, files: Iterable[Path]) -> Path:
    """Write the file that `sha256sum --check` reads; its path."""
    lines = []
    for path in sorted(files):
        with open(path, "rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n")
    sums = folder / SUMS
    sums.write_text("".join(lines))
    return sums


def sign(file: Path, key: Path) -> Path:
    """Sign a file with a private SSH key, and verify that; the signature's path. Raises `SigningFailed`."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    run("-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(file))
    public = run("-y", "-f", str(key))
    with tempfile.NamedTemporaryFile("w") as signers:
        signers.write(f'release namespaces="{NAMESPACE}" {public}')
        signers.flush()
        verify(file, signature, Path(signers.name))
    return signature


def verify(file: Path, signature: Path, signers: Path) -> None:
    """Raise `SigningFailed` unless "release" of the file `signers` has signed `file`."""
    options = ["-Y", "verify", "-f", str(signers), "-I", "release", "-n", NAMESPACE]
    run(*options, "-s", str(signature), stdin=file.read_bytes())


def run(*arguments: str, stdin: bytes = b"") -> str:
    """What ssh-keygen prints; raises `SigningFailed`."""
    try:
        done = subprocess.run(
            ["ssh-keygen", *arguments], input=stdin, capture_output=True, check=False
        )
    except FileNotFoundError:
        raise SigningFailed("ssh-keygen is missing: install openssh-client") from None
    if done.returncode != 0:
        raise SigningFailed(" ".join((done.stderr or done.stdout).decode().split()))
    return done.stdout.decode()
