"""The kubectl plug-in as one archive that needs only Python: for krew, and for a machine without pip.

The Kubernetes client needs a compiled module (pydantic-core). Its builds for several versions of Python and both
architectures lie side by side, for their names differ.
"""

import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools.pages import ROOT
from tools.release import archive

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Architecture in krew's manifest -> architecture in a wheel's name."""
COMPILED = "pydantic-core"
LEFT_OUT = {"google-re2", "nvidia-ml-py", "prometheus-client", "py-spy"}
"""Packages of the image that the plug-in does not import."""
UNUSED = re.compile(r"kubernetes/(aio|e2e_test|test)/|kcover_ebpf/objects/|\.data/|__pycache__/")
REQUIREMENTS = ROOT / "tools/image-requirements.txt"
SCRIPT = """\
#!/usr/bin/env python3
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
if sys.version_info < (3, 11):
    sys.exit("kubectl-kcover needs Python 3.11 or newer")
from kcover_ebpf.cli.kubectl import {function}  # noqa: E402

sys.exit({function}())
"""
MANIFEST = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: kcover
spec:
  version: v{version}
  homepage: {repository}
  shortDescription: Explain and approve incidents of AI training jobs
  description: |
    Lists and explains the incidents that kcover-ebpf records when a training job hangs or fails,
    approves or tries out what would be done, and lists, inspects and uncordons nodes.
  caveats: |
    Needs Python 3.11 to 3.14, and kcover-ebpf in the cluster.
  platforms:
{platforms}"""
PLATFORM = """\
    - selector:
        matchLabels:
          os: linux
          arch: {arch}
      uri: {repository}/releases/download/v{version}/{file}
      sha256: {digest}
      bin: kubectl-kcover
"""


class PluginFailed(Exception):
    """The plug-in could not be packed; the text says why, in one line."""


def requirements(text: str) -> dict[str, str]:
    """Package -> entry (version and hashes) of a requirements file, only for packages that the plug-in imports."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    entries = {line.partition("==")[0]: line for line in lines if "==" in line}
    return {name: entry for name, entry in entries.items() if name not in LEFT_OUT}


def download(entries: list[str], folder: Path, *options: str) -> None:
    """Download wheels with pip and check their hashes; raises `PluginFailed`."""
    listed = folder / "requirements.txt"
    listed.write_text("\n".join(entries) + "\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(listed), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PluginFailed(f"pip download: {' '.join(done.stderr.split())[-300:]}")


def modules(wheel: bytes) -> Iterator[archive.Entry]:
    """The files that a wheel installs, below lib/."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as opened:
        for name in opened.namelist():
            if not name.endswith("/") and not UNUSED.search(name):
                yield archive.Entry(f"lib/{name}", opened.read(name))


def build(wheel: Path, target: Path, epoch_s: int) -> None:
    """Write the archive of the plug-in, made of our own `wheel` and of the image's packages; raises `PluginFailed`."""
    found = {module.name: module for module in modules(wheel.read_bytes())}
    entries = requirements(REQUIREMENTS.read_text())
    compiled = entries.pop(COMPILED)
    with tempfile.TemporaryDirectory(prefix="kcover-plugin-") as name:
        folder = Path(name)
        download(list(entries.values()), folder)
        for machine in MACHINES.values():
            for version in PYTHONS:
                platform = ("--platform", f"manylinux_2_17_{machine}", "--python-version", version)
                download([compiled], folder, *platform)
        for path in sorted(folder.glob("*.whl")):
            found |= {module.name: module for module in modules(path.read_bytes())}
    # PyYAML and charset-normalizer contain Python code for everything that they compile for one
    # Python version
    kept = [
        entry
        for entry in found.values()
        if not entry.name.endswith(".so") or "pydantic" in entry.name
    ]
    programs = [
        archive.Entry("kubectl-kcover", SCRIPT.format(function="main").encode(), is_program=True),
        archive.Entry(
            "kubectl_complete-kcover", SCRIPT.format(function="complete").encode(), is_program=True
        ),
        archive.entry("LICENSE", ROOT / "LICENSE"),
        archive.entry("NOTICE", ROOT / "NOTICE"),
    ]
    archive.write(target, [*programs, *sorted(kept, key=lambda entry: entry.name)], epoch_s)


def manifest(file: Path, version: str, repository: str) -> str:
    """Krew's manifest for the published archive `file`."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    about = {"version": version, "repository": repository, "file": file.name, "digest": digest}
    platforms = "".join(PLATFORM.format(arch=arch, **about) for arch in MACHINES)
    return MANIFEST.format(platforms=platforms, **about)
