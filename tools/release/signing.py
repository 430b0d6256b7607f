"""Checksums, and their signatures: by an SSH key, which needs no program that is not there, and by minisign."""

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
    _run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(file))
    public = _run("ssh-keygen", "-y", "-f", str(key))
    with tempfile.NamedTemporaryFile("w") as signers:
        signers.write(f'release namespaces="{NAMESPACE}" {public}')
        signers.flush()
        verify(file, signature, Path(signers.name))
    return signature


def sign_by_minisign(file: Path, key: Path, comment: str) -> Path:
    """Sign a file with a minisign key that has no password, and verify that; the signature's path.

    `comment` is signed too. minisign's own comment would hold the time, and each signature would differ. Raises
    `SigningFailed`.
    """
    signature = file.with_name(f"{file.name}.minisig")
    _run("minisign", "-S", "-s", str(key), "-m", str(file), "-x", str(signature), "-t", comment)
    with tempfile.TemporaryDirectory() as folder:
        public = Path(folder, "minisign.pub")
        _run("minisign", "-R", "-s", str(key), "-p", str(public))
        _run("minisign", "-V", "-q", "-p", str(public), "-m", str(file), "-x", str(signature))
    return signature


def verify(file: Path, signature: Path, signers: Path) -> None:
    """Raise `SigningFailed` unless "release" of the file `signers` has signed `file`."""
    options = ["-Y", "verify", "-f", str(signers), "-I", "release", "-n", NAMESPACE]
    _run("ssh-keygen", *options, "-s", str(signature), stdin=file.read_bytes())


def _run(*command: str, stdin: bytes = b"") -> str:
    """What a command prints; raises `SigningFailed`."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    except FileNotFoundError:
        package = {"ssh-keygen": "openssh-client"}.get(command[0], command[0])
        raise SigningFailed(f"{command[0]} is missing: install {package}") from None
    if done.returncode != 0:
        raise SigningFailed(" ".join((done.stderr or done.stdout).decode().split()))
    return done.stdout.decode()
