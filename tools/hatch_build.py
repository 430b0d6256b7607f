"""Wheel build hook: compiles the BPF objects and writes the manual pages before hatchling collects them.

An editable install skips it: `make build` compiles the objects in place.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ReleaseHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if shutil.which("make") is None:
            self.app.abort("building the wheel compiles BPF: install make, clang-14 and llvm-14")
        try:
            subprocess.run(["make", "--silent", "objects"], cwd=self.root, check=True)
        except subprocess.CalledProcessError:
            self.app.abort("`make objects` failed: clang-14, llvm-14 and libbpf-dev are needed")
        self._manuals = tempfile.mkdtemp(
            prefix="kcover-manuals-"
        )  # two parallel builds share nothing
        command = [sys.executable, "-m", "tools.docs.commands", "man", self._manuals]
        try:
            subprocess.run(command, cwd=self.root, check=True)
        except subprocess.CalledProcessError:
            self.app.abort(
                "writing the manual pages failed: click, google-re2 and prometheus-client are needed"
            )
        for page in Path(self._manuals).iterdir():
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            shutil.rmtree(self._manuals)
