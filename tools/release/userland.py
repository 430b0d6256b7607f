"""Installs what is in dist/ on clean systems, in chroots, and runs it: `make test-wheel`, `make test-install`, as root.

PYTHONPATH=. python3 -m tools.release.userland [SUITE...]    bookworm and trixie, if none is named

Each system has its distribution's minimal packages, Python with venv and libbpf, and nothing else. What the wheel needs
beside it comes from pip; the kubectl plug-in needs nothing. Inside, apt and pip have the settings of this machine
(environment, files that it names, pip.conf), none of which is kept. Ubuntu's packages are checked against
KCOVER_UBUNTU_KEYRING (/usr/share/keyrings/ubuntu-archive-keyring.gpg, of the package ubuntu-keyring).
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class System:
    """A distribution as mmdebstrap creates it; `source` are its arguments after the folder."""

    title: str
    more_packages: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    source: tuple[str, ...] = ()


_UBUNTU_KEYRING = (
    os.environ.get("KCOVER_UBUNTU_KEYRING") or "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
)
SYSTEMS = {
    "bookworm": System("Debian 12"),
    "trixie": System("Debian 13"),
    "noble": System(
        "Ubuntu 24.04",
        ("libstdc++6",),  # google-re2 needs it, and Debian's minimal system contains it
        (f"--keyring={_UBUNTU_KEYRING}", "--components=main,universe"),
        ("http://archive.ubuntu.com/ubuntu",),
    ),
}
DEFAULT = ("bookworm", "trixie")
PACKAGES = ("python3", "python3-venv", "libbpf1", "ca-certificates")
SETTINGS = ("PIP_", "SSL_CERT", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")
PIP_FILES = (
    Path("/etc/pip.conf"),
    Path.home() / ".config/pip/pip.conf",
    Path.home() / ".pip/pip.conf",
)
# All mounts disappear when the command ends, also if it is killed.
PRIVATE = ("unshare", "--mount", "--propagation", "private")
NETWORK = ("/etc/resolv.conf", "/etc/hosts")
# Runs in the chroot; any failing command fails the script.
SCRIPT = r"""
set -eu
command -v clang gcc make && { echo "a compiler is installed: this system is not clean" >&2; exit 1; }
cd /dist
test ! -e SHA256SUMS || sha256sum --quiet --check SHA256SUMS
cd /root
python3 -m venv env
env/bin/pip install --quiet --no-cache-dir /dist/*.whl
export PATH=/root/env/bin:$PATH
kcover-ebpf --version
kcover-ebpf run -- true
kcover-ebpf run -- sh -c 'exit 7' >/dev/null 2>&1 || code=$?
test "$code" = 7
kcover-ebpf doctor >doctor.txt
grep attached doctor.txt | head -n 3
kcover-ebpf xid 79
echo 'NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.' | kcover-ebpf logs -
test -f env/share/man/man1/kcover-ebpf-run.1
kcover-ebpf completion bash | grep -q complete
for archive in /dist/kubectl-kcover-*.tar.gz; do
	test -e "$archive" || continue
	mkdir -p /opt/kubectl-kcover
	tar -xzf "$archive" -C /opt/kubectl-kcover
	ln -sf /opt/kubectl-kcover/kubectl-kcover /opt/kubectl-kcover/kubectl_complete-kcover /usr/bin/
	PATH=/usr/bin:/bin kubectl-kcover --version
	PATH=/usr/bin:/bin kubectl_complete-kcover expl | grep -q explain
	PATH=/usr/bin:/bin kubectl-kcover --help | grep -q uncordon
	# without a cluster its error is one line, which the client's whole import precedes
	PATH=/usr/bin:/bin kubectl-kcover list >list.txt 2>&1 || code=$?
	test "$code" != 7
	test "$(wc -l <list.txt)" = 1
	cat list.txt
done
"""


def settings() -> dict[str, str]:
    """Environment inside the chroot: only how this machine's pip reaches its index."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **kept}


def shown(environment: dict[str, str]) -> Iterator[tuple[Path, Path]]:
    """(file or folder on this machine, path inside the chroot)."""
    for name in NETWORK:
        yield Path(name), Path(name)
    for value in environment.values():
        path = Path(value)
        if path.is_absolute() and path != Path("/root") and path.exists():
            yield path, path
    for path in PIP_FILES:
        if path.exists():
            yield path, Path("/etc/pip.conf")


def make_system(suite: str, folder: Path) -> None:
    """Create a minimal system in `folder`."""
    system = SYSTEMS[suite]
    packages = [*PACKAGES, *system.more_packages]
    command = [
        *PRIVATE,
        "mmdebstrap",
        "--variant=minbase",
        "--quiet",
        f"--include={','.join(packages)}",
    ]
    command += [*system.options, suite, str(folder), *system.source]
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(folder.parent)})


def try_files(folder: Path, system: Path) -> int:
    """Install the files in `folder` in `system`, and run them; returns the exit code."""
    environment = settings()
    lines = ["set -eu"]
    for source, target in [*shown(environment), (folder, Path("/dist"))]:
        inside = f"{system}{target}"
        make = (
            f"mkdir -p '{inside}'"
            if source.is_dir()
            else f"mkdir -p '{Path(inside).parent}' && touch '{inside}'"
        )
        lines.append(f"{make} && mount --bind '{source}' '{inside}'")
    lines += [f"mount --rbind /{name} '{system}/{name}'" for name in ("proc", "sys", "dev")]
    lines.append(f"exec chroot '{system}' /bin/sh -c \"$SCRIPT\"")
    command = [*PRIVATE, "/bin/sh", "-c", "\n".join(lines)]
    return subprocess.run(command, env={**environment, "SCRIPT": SCRIPT}, check=False).returncode


def main(suites: Sequence[str]) -> int:
    """Try each suite; 1 if one failed, 2 if it could not be tried."""
    dist = ROOT / "dist"
    if problem := _lacking(suites, len(list(dist.glob("*.whl")))):
        print(f"userland: {problem}", file=sys.stderr)
        return 2
    failed = []
    for suite in suites or DEFAULT:
        title = SYSTEMS[suite].title
        with tempfile.TemporaryDirectory(prefix="kcover-userland-") as folder:
            print(f"=== {title}: what is in dist/ on a clean system", flush=True)
            make_system(suite, Path(folder, suite))
            code = try_files(dist, Path(folder, suite))
        result = "works" if code == 0 else f"FAILED with exit code {code}"
        print(f"=== {title}: {result}", flush=True)
        if code != 0:
            failed.append(suite)
    return 1 if failed else 0


def _lacking(suites: Sequence[str], wheels: int) -> str | None:
    """Missing requirement without which no system can be tried; None if all are met."""
    if unknown := [suite for suite in suites if suite not in SYSTEMS]:
        return f"no suite {unknown[0]}; there are {', '.join(SYSTEMS)}"
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        return "run as root, with mmdebstrap (tools/setup image)"
    if wheels != 1:
        return "dist/ must have one wheel: run make wheel or make release"
    if "noble" in suites and not Path(_UBUNTU_KEYRING).exists():
        return f"{_UBUNTU_KEYRING} is missing: set KCOVER_UBUNTU_KEYRING"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
