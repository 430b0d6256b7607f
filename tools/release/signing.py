"""Writes checksums and signs them, with an SSH key (which needs only OpenSSH) and with minisign."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

SUMS, NAMESPACE = "SHA256SUMS", "kcover-ebpf-release"


class SigningFailed(Exception):
    """A file could not be signed; the text says why, in one line."""


def write_sums(folder: Path, files: Iterable[Path]) -> Path:
    """Write a file that `sha256sum --check` can read; returns its path."""
    lines = []
    for path in sorted(files):
        with open(path, "rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {path.name}\n")
    sums = folder / SUMS
    sums.write_text("".join(lines))
    return sums


def sign(file: Path, key: Path) -> Path:
    """Sign a file with a private SSH key and verify the signature; returns its path. Raises `SigningFailed`."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    _run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(file))
    public = _run("ssh-keygen", "-y", "-f", str(key))
    with tempfile.NamedTemporaryFile("w") as signers:
        signers.write(f'release namespaces="{NAMESPACE}" {public}')
        signers.flush()
        verify(file, signature, Path(signers.name))
    return signature


def sign_by_minisign(file: Path, key: Path, comment: str) -> Path:
    """Sign a file with a minisign key without a password, and verify the signature; returns its path.

    `comment` is signed too; minisign's default comment contains the time, so that each signature would differ.
    Raises `SigningFailed`.
    """
    signature = file.with_name(f"{file.name}.minisig")
    _run("minisign", "-S", "-s", str(key), "-m", str(file), "-x", str(signature), "-t", comment)
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder, "minisign.pub")
        _run("minisign", "-R", "-s", str(key), "-p", str(public))
        _run("minisign", "-V", "-q", "-p", str(public), "-m", str(file), "-x", str(signature))
    return signature


def verify(file: Path, signature: Path, signers: Path) -> None:
    """Raise `SigningFailed` unless the key of "release" in the file `signers` has signed `file`."""
    options = ["-Y", "verify", "-f", str(signers), "-I", "release", "-n", NAMESPACE]
    _run("ssh-keygen", *options, "-s", str(signature), stdin=file.read_bytes())


def _run(*command: str, stdin: bytes = b"") -> str:
    """Output of a command; raises `SigningFailed`."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        package = {"ssh-keygen": "openssh-client"}.get(command[0], command[0])
        raise SigningFailed(f"{command[0]} is missing: install {package}") from None
    if done.returncode != 0:
        raise SigningFailed(" ".join((done.stderr or done.stdout).decode().split()))
    return done.stdout.decode()
