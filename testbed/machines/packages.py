"""Packages of other distributions' suites, unpacked below .vm/ without touching the host's packages.

apt works with its own state: neither the host's package lists nor its packages change.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORE = (ROOT / ".vm").resolve()
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Missing(Exception):
    """Something cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One supported kernel and where Debian keeps it."""

    name: str
    suite: str
    package: str = "linux-image-amd64"
    headers: str = "linux-headers-amd64"
    component: str = "main"
    arch: str = "amd64"
    """Debian's name of the architecture; another than the host's is only unpacked."""


@contextmanager
def locked(what: str = "kernels") -> Iterator[None]:
    """One at a time: tests of several kernels share the store."""
    STORE.mkdir(exist_ok=True)
    with (STORE / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(*command: str, cwd: Path | None = None, what: str = "") -> str:
    """What a command printed; raises `Missing` with its last words when it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600
        )
    except OSError as error:
        raise Missing(f"{what or command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Missing(f"{what or command[0]}: {' | '.join(last)}")
    return done.stdout


def _state(kernel: Kernel) -> Path:
    foreign = "" if kernel.arch == "amd64" else f"-{kernel.arch}"
    return STORE / "apt" / f"{kernel.suite}-{kernel.component}{foreign}"


def apt(kernel: Kernel, tool: str, *arguments: str, cwd: Path | None = None) -> str:
    """What a tool of apt says, asked about one suite."""
    state = _state(kernel)
    if not (state / "sources.list").exists():
        for part in ("lists/partial", "cache/archives/partial", "preferences"):
            (state / part).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        security = kernel.suite.endswith("-security")
        uris = run("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
        mirror = next((u for u in uris if u.rstrip("/").endswith("security") == security), None)
        if mirror is None:
            raise Missing("apt knows no Debian mirror")
        source = (
            f"deb [arch={kernel.arch} signed-by={_KEYRING}] "
            f"{mirror} {kernel.suite} {kernel.component}\n"
        )
        (state / "sources.list").write_text(source)
    options = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/nonexistent",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": state / "preferences",
        "Dir::State::Lists": state / "lists",
        "Dir::Cache": state / "cache",
        "Dir::State::status": state / "status",
        "APT::Sandbox::User": "root",
        "APT::Architecture": kernel.arch,
        "APT::Architectures": kernel.arch,
    }
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if not any((state / "lists").glob("*Packages*")):
        run("apt-get", *words, "update", what=f"no package list of {kernel.suite}")
    return run(tool, *words, *arguments, cwd=cwd, what=f"{kernel.suite}: {arguments[-1]}")


def unpack(kernel: Kernel, packages: list[str], target: Path) -> None:
    """Fetch packages of a suite and lay out their files below `target`; nothing is installed."""
    debs = target.with_suffix(".debs")
    shutil.rmtree(debs, ignore_errors=True)  # of a fetch that was broken off
    debs.mkdir(parents=True)
    apt(kernel, "apt-get", "-q", "download", *packages, cwd=debs)
    for deb in debs.glob("*.deb"):
        run("dpkg-deb", "-x", str(deb), str(target))
    shutil.rmtree(debs)


def unpack_system(kernel: Kernel, packages: Sequence[str], target: Path) -> None:
    """Lay out packages and all that they depend on below `target`; none of their scripts runs."""
    fetched = _state(kernel) / "cache" / "archives"
    for deb in fetched.glob("*.deb"):
        deb.unlink()  # of a fetch that was broken off
    words = ("-q", "-y", "--no-install-recommends", "--download-only", "install")
    apt(kernel, "apt-get", *words, *packages)
    for deb in fetched.glob("*.deb"):
        run("dpkg-deb", "-x", str(deb), str(target))
        deb.unlink()


def each(wanted: Iterable[Kernel], reported: Callable[[Kernel], str]) -> int:
    """Print the answer about each; those that cannot be had are said, and make the result 1."""
    failed = 0
    for kernel in wanted:
        try:
            print(f"{kernel.name}: {reported(kernel)}")
        except Missing as reason:
            failed = 1
            print(f"{kernel.name}: {reason}", file=sys.stderr)
    return failed
