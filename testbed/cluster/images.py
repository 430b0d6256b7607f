"""The images of the test bed, made from Debian packages and our own programs, without a registry.

Unpacking the training image takes longer than all the rest of `up`. So it is done once, in parallel with the
programs, into a containerd folder in the cache, and each node begins with a copy of that folder. The copy is cheap:
blobs are hard links, and the unpacked files are a mount of those in the cache, which are only read.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from testbed.cluster import cache, layout, oci, shell
from testbed.cluster.probes import SocketProbe, wait

SUITE = "bookworm"
TRAIN_PACKAGES = (
    "python3-torch",
    "python3-numpy",
    "python3-mpi4py",
    "openmpi-bin",
    "openssh-client",  # mpirun reaches its workers by ssh
    "openssh-server",
    "iproute2",
    "procps",
)
# nslookup: the training operator's init container asks for the master in this way.
TRAIN_FILES = {
    "usr/bin/nslookup": '#!/bin/sh\nexec getent ahostsv4 "$1"\n',
    "etc/ssh/ssh_config.d/mpi.conf": (
        "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    ),
    "etc/ssh/sshd_config.d/mpi.conf": "StrictModes no\n",
}
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
PAUSE_SOURCE = Path(__file__).with_name("pause.c")
RECIPE = cache.key(
    "1",
    SUITE,
    platform.machine(),
    PAUSE_SOURCE.read_text(),
    *LEFT_OUT,
    *TRAIN_PACKAGES,
    *(f"{name}\n{text}" for name, text in sorted(TRAIN_FILES.items())),
)
PROGRAM = "/manager"
SNAPSHOTS = "io.containerd.snapshotter.v1.overlayfs/snapshots"
SEED = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
"""


class Layer(NamedTuple):
    """The files of a layer: where they are, and where below containerd's folder they belong."""

    path: str
    place: str


def base(say: shell.Say) -> list[Path]:
    """Archives of the pause and the training image."""
    folder = cache.folder("images", RECIPE)
    pause, train = folder / "pause.tar", folder / "train.tar"
    with cache.locked(f"images-{RECIPE}"):
        if not pause.exists():
            static(pause, layout.PAUSE_IMAGE, _compile_pause(folder))
        if not train.exists():
            say("making the training image from Debian packages (2 minutes)")
            _make_train(train)
    return [pause, train]


def static(archive: Path, name: str, program: Path, user: str = "0:0") -> None:
    """Write the image `name` that runs one static program, under the name that manifests expect."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for folder in ("tmp", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        entry = tarfile.TarInfo(PROGRAM.removeprefix("/"))
        entry.size, entry.mode = program.stat().st_size, 0o755
        with open(program, "rb") as file:
            tar.addfile(entry, file)
    settings = {"Entrypoint": [PROGRAM], "User": user}
    oci.write(archive, name, layer, platform.machine(), settings)
    layer.unlink()


def store(say: shell.Say) -> Path:
    """The containerd folder in the cache that has the base images unpacked."""
    archives = base(say)
    target = cache.folder("stores") / RECIPE
    with cache.locked(f"store-{RECIPE}"):
        if not target.exists():
            say("unpacking the images")
            _make_store(archives, target)
    return target


def copy_store(target: Path) -> None:
    """Give a node the base images."""
    source = layout.cache_folder() / "stores" / RECIPE
    new = target.with_name(target.name + ".new")
    cache.remove(new)
    unpacked = {layer.path for layer in layers()}
    link = os.link if source.stat().st_dev == target.parent.stat().st_dev else shutil.copy2

    def left_out(folder: str, names: list[str]) -> list[str]:
        return names if folder in unpacked else []

    def copied(old: str, new: str) -> None:
        (shutil.copy2 if old.endswith(".db") else link)(old, new)

    shutil.copytree(source, new, copy_function=copied, ignore=left_out)
    new.rename(target)


def layers() -> list[Layer]:
    """The unpacked layers of the base images; a node mounts each of them."""
    source = layout.cache_folder() / "stores" / RECIPE
    found = sorted(source.glob(f"{SNAPSHOTS}/*/fs"))
    return [Layer(str(path), str(path.relative_to(source))) for path in found]


def load(address: Path, archive: Path, name: str | None = None) -> None:
    """Import an archive into the containerd that listens at a socket; `name` for one without."""
    command: list[str | Path] = ["ctr", "--address", address, "-n", "k8s.io", "images", "import"]
    if name is not None:
        command += ["--base-name", name.rpartition(":")[0], "--index-name", name]
    shell.text(*command, archive)


def _compile_pause(folder: Path) -> Path:
    program = folder / "pause"
    shell.text("gcc", "-Os", "-static", "-s", "-o", program, PAUSE_SOURCE)
    return program


def _make_train(archive: Path) -> None:
    extra = archive.with_name("extra")
    hooks = []
    for name, text in TRAIN_FILES.items():
        file = extra / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755 if text.startswith("#!") else 0o644)
        hooks.append(f"--customize-hook=copy-in {file} /{Path(name).parent}")
    root = archive.with_suffix(".root.tar")
    command: list[str | Path] = ["mmdebstrap", "--variant=minbase", "--mode=root"]
    command += [f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT]
    command += [f"--include={','.join(TRAIN_PACKAGES)}", *hooks]
    command += [SUITE, root]
    shell.logged(cache.folder("log") / "images.log", command)
    settings = {"Cmd": ["python3"], "Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin"]}
    oci.write(archive, layout.TRAIN_IMAGE, root, platform.machine(), settings)
    root.unlink()
    shutil.rmtree(extra)


def _make_store(archives: list[Path], target: Path) -> None:
    new = target.with_name(target.name + ".new")
    cache.remove(new)
    log = cache.folder("log") / "seed-containerd.log"
    with tempfile.TemporaryDirectory(prefix="kcover-seed-") as state, open(log, "ab") as output:
        socket, settings = Path(state, "containerd.sock"), Path(state, "containerd.toml")
        settings.write_text(SEED.format(root=new, state=state, socket=socket))
        # it belongs to no test bed, whose cgroup would end it with us
        command: list[str | Path] = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "containerd",
            "--config",
            settings,
        ]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            wait("containerd", SocketProbe(socket), 60, log)
            for archive in archives:
                load(socket, archive)
        finally:
            process.terminate()
            process.wait()
    os.rename(new, target)  # noqa: PTH104
