"""`make release`: everything that is published for a version, in dist/.

KCOVER_SIGNING_KEY, the path of a private SSH key, has the checksums signed. Exit code 2 if the
release could not be made.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kcover_ebpf import __version__
from tools.pages import DATA, ROOT
from tools.release import archive, chart, notes, signing

DIST, IMAGE = ROOT / "dist", ROOT / "build/image"
NAME = f"kcover-ebpf-{__version__}"


class ReleaseFailed(Exception):
    """The text says why, in one line."""


def output(*command: str) -> str:
    """What a command prints; raises `ReleaseFailed`."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseFailed(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
    return done.stdout


def step(title: str, *command: str) -> None:
    """Run a command with its output on the terminal; raises `ReleaseFailed`."""
    print(f"release: {title}", flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise ReleaseFailed(f"failed: {' '.join(command)}")


def check_tree() -> None:
    """A release is made from a commit, which the image and the notes name."""
    changed = output("git", "status", "--porcelain", "--untracked-files=no").split("\n")[0]
    if changed:
        raise ReleaseFailed(f"there are changes that are not committed: {changed.split()[-1]}")


def build(epoch_s: int) -> None:
    """Write all files but the checksums."""
    text, is_final = notes.notes((ROOT / "CHANGELOG.md").read_text(), __version__)
    if not is_final:
        print(f"release: CHANGELOG.md has no section [{__version__}]; the notes are its Unreleased")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    (DIST / "RELEASE_NOTES.md").write_text(text)
    targets = ("--target", "sdist", "--target", "wheel")
    step("wheel and sdist", sys.executable, "-m", "hatchling", "build", *targets)
    print("release: chart", flush=True)
    chart.pack(ROOT / "charts/kcover-ebpf", DIST / f"{NAME}.tgz", epoch_s)
    if raw := sorted(path for path in DATA.rglob("*") if path.is_file()):
        print("release: raw results of benches", flush=True)
        named = [(f"bench/{path.relative_to(DATA)}", path) for path in raw]
        archive.write(DIST / f"{NAME}-bench.tar.gz", named, epoch_s)
    step("image and its bill of materials", "tools/image", "build")
    shutil.copy(IMAGE / "kcover-ebpf.tar", DIST / f"{NAME}-image.tar")
    shutil.copy(IMAGE / "kcover-ebpf.spdx.json", DIST / f"{NAME}-image.spdx.json")


def finish(key: str | None) -> None:
    """Checksums and, with a key, their signature."""
    sums = signing.write_sums(DIST, list(DIST.iterdir()))
    if key:
        signing.sign(sums, Path(key))
    else:
        print("release: not signed (KCOVER_SIGNING_KEY names no key)")


def main() -> int:
    """Make the release; the exit code."""
    try:
        check_tree()
        epoch_s = int(
            os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
        )
        os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
        build(epoch_s)
        finish(os.environ.get("KCOVER_SIGNING_KEY"))
    except (ReleaseFailed, signing.SigningFailed, ValueError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size / 1e6:9.2f} MB  dist/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
