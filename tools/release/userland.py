"""Installs the wheel on a clean Debian, in a chroot, and runs it: `make test-wheel`, as root.

PYTHONPATH=. python3 -m tools.release.userland [SUITE...]    bookworm and trixie, if none is named

Each system has Debian's minimal packages, Python with venv and libbpf, and nothing else; what the
wheel needs beside it comes from pip. The apt and pip settings of this machine (environment,
files that it names, pip.conf) are those inside; nothing of them is kept.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("bookworm", "trixie")
PACKAGES = "python3,python3-venv,libbpf1,ca-certificates"
SETTINGS = ("PIP_", "SSL_CERT", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")
PIP_FILES = (
    Path("/etc/pip.conf"),
    Path.home() / ".config/pip/pip.conf",
    Path.home() / ".pip/pip.conf",
)
# Whatever is mounted, ends with the command, also one that is killed.
PRIVATE = ("unshare", "--mount", "--propagation", "private")
NETWORK = ("/etc/resolv.conf", "/etc/hosts")
# In the chroot; the last command's failure, or any other's, is ours.
SCRIPT = r"""
set -eu
cd /root
python3 -m venv env
env/bin/pip install --quiet --no-cache-dir /wheel/*.whl
export PATH=/root/env/bin:$PATH
command -v clang gcc make && { echo "a compiler is installed: this system is not clean" >&2; exit 1; }
kcover-ebpf --version
kcover-ebpf run -- true
kcover-ebpf run -- sh -c 'exit 7' >/dev/null 2>&1 || code=$?
test "$code" = 7
kcover-ebpf doctor >doctor.txt
grep attached doctor.txt | head -n 3
kcover-ebpf xid 79
echo 'NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.' | kcover-ebpf logs -
test -f env/share/man/man1/kcover-ebpf-run.1
"""


def settings() -> dict[str, str]:
    """The environment inside: how this machine's pip reaches its index, and no more."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **kept}


def shown(environment: dict[str, str]) -> Iterator[tuple[Path, Path]]:
    """Files and folders of this machine, and where they have to be inside."""
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
    """A minimal Debian in `folder`."""
    command = [
        *PRIVATE,
        "mmdebstrap",
        "--variant=minbase",
        "--quiet",
        f"--include={PACKAGES}",
        suite,
        str(folder),
    ]
    subprocess.run(command, check=True, env={**os.environ, "TMPDIR": str(folder.parent)})


def try_wheel(folder: Path, system: Path) -> int:
    """Install the wheel in `folder` in `system`, and run it; the exit code."""
    environment = settings()
    lines = ["set -eu"]
    for source, target in [*shown(environment), (folder, Path("/wheel"))]:
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
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or len(wheels) != 1:
        text = (
            "run as root, with mmdebstrap (tools/setup image) and one wheel in dist/ (make wheel)"
        )
        print(f"userland: {text}", file=sys.stderr)
        return 2
    failed = []
    for suite in suites or SUITES:
        with tempfile.TemporaryDirectory(prefix="kcover-userland-") as folder:
            print(f"=== {suite}: {wheels[0].name} on a clean system", flush=True)
            make_system(suite, Path(folder, suite))
            code = try_wheel(wheels[0].parent, Path(folder, suite))
        print(
            f"=== {suite}: {'works' if code == 0 else f'FAILED with exit code {code}'}", flush=True
        )
        if code != 0:
            failed.append(suite)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
