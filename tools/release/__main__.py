"""`make release`: everything that is published for a version, in dist/.

KCOVER_SIGNING_KEY, the path of a private SSH key, and KCOVER_MINISIGN_KEY, the path of a minisign key without a
password, have the checksums signed. KCOVER_IMAGE_REPOSITORY is where the image will be published: the packed chart then
names it, by its digest. Exit code 2 if the release could not be made.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from kcover_ebpf import __version__
from tools.pages import DATA, REPOSITORY, ROOT
from tools.release import archive, chart, notes, oci, plugin, provenance, signing

DIST, IMAGE = ROOT / "dist", ROOT / "build/image"
NAME = f"kcover-ebpf-{__version__}"
CHART = ROOT / "charts/kcover-ebpf"


class ReleaseFailed(Exception):
    """The release could not be made; the text says why, in one line."""


def output(*command: str) -> str:
    """Output of a command; raises `ReleaseFailed`."""
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
    """Check that the work tree is a commit, because the image and the notes name it."""
    changed = output("git", "status", "--porcelain", "--untracked-files=no").split("\n")[0]
    if changed:
        raise ReleaseFailed(f"there are changes that are not committed: {changed.split()[-1]}")


def build(epoch_s: int) -> None:
    """Write all files except the provenance and the checksums."""
    text, is_final = notes.notes((ROOT / "CHANGELOG.md").read_text(), __version__)
    if not is_final:
        print(f"release: CHANGELOG.md has no section [{__version__}]; the notes are its Unreleased")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    targets = ("--target", "sdist", "--target", "wheel")
    step("wheel and sdist", sys.executable, "-m", "hatchling", "build", *targets)
    print("release: kubectl plug-in", flush=True)
    packed = DIST / f"kubectl-kcover-{__version__}-linux.tar.gz"
    plugin.build(next(DIST.glob("*.whl")), packed, epoch_s)
    (DIST / "krew-kcover.yaml").write_text(plugin.manifest(packed, __version__, REPOSITORY))
    print("release: alerts and dashboards", flush=True)
    files = sorted(path for path in (CHART / "files").rglob("*") if path.is_file())
    monitoring = [archive.entry(str(path.relative_to(CHART / "files")), path) for path in files]
    archive.write(DIST / f"{NAME}-monitoring.tar.gz", monitoring, epoch_s)
    if raw := sorted(path for path in DATA.rglob("*") if path.is_file()):
        print("release: raw results of benches", flush=True)
        results = [archive.entry(f"bench/{path.relative_to(DATA)}", path) for path in raw]
        archive.write(DIST / f"{NAME}-bench.tar.gz", results, epoch_s)
    step("image and its bill of materials", "tools/image", "build")
    oci.pack(IMAGE / "kcover-ebpf.tar", DIST / f"{NAME}-image.tar", epoch_s)
    shutil.copy(IMAGE / "kcover-ebpf.spdx.json", DIST / f"{NAME}-image.spdx.json")
    digest = oci.digest_of(IMAGE / "kcover-ebpf.tar")
    repository = os.environ.get("KCOVER_IMAGE_REPOSITORY")
    image = chart.Image(repository, digest) if repository else None
    print(f"release: chart, {'of ' + repository if repository else 'without a repository'}")
    chart.pack(CHART, DIST / f"{NAME}.tgz", epoch_s, image)
    published = f"{repository}@{digest}" if repository else digest
    (DIST / "RELEASE_NOTES.md").write_text(f"{text}\nImage: `{published}`\n")


def finish(epoch_s: int) -> None:
    """Write provenance and checksums and, if there are keys, their signatures."""
    commit = output("git", "rev-parse", "HEAD").strip()
    source = provenance.Source(REPOSITORY, commit, epoch_s)
    digest = oci.digest_of(DIST / f"{NAME}-image.tar")
    pins = [ROOT / f"tools/{name}-requirements.txt" for name in ("build", "image")]
    text = provenance.statement(list(DIST.iterdir()), digest, source, pins)
    (DIST / f"{NAME}.intoto.json").write_text(text)
    sums = signing.write_sums(DIST, list(DIST.iterdir()))
    ssh, minisign = (os.environ.get(f"KCOVER_{kind}_KEY") for kind in ("SIGNING", "MINISIGN"))
    if ssh:
        signing.sign(sums, Path(ssh))
    if minisign:
        signing.sign_by_minisign(sums, Path(minisign), NAME)
    if not ssh and not minisign:
        print("release: not signed (neither KCOVER_SIGNING_KEY nor KCOVER_MINISIGN_KEY is set)")


def main() -> int:
    """Make the release; the exit code."""
    try:
        check_tree()
        epoch_s = int(
            os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct")
        )
        os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
        build(epoch_s)
        finish(epoch_s)
    except (ReleaseFailed, signing.SigningFailed, plugin.PluginFailed, ValueError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size / 1e6:9.2f} MB  dist/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
