"""Wheel build hook: compiles the BPF objects and writes the manual pages before hatchling collects them.

An editable install skips it: `make build` compiles the objects in place.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MANUALS = "build/man"


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
        shutil.rmtree(Path(self.root, MANUALS), ignore_errors=True)
        command = [sys.executable, "-m", "tools.docs.commands", "man", MANUALS]
        try:
            subprocess.run(command, cwd=self.root, check=True)
        except subprocess.CalledProcessError:
            self.app.abort(
                "writing the manual pages failed: click, google-re2 and prometheus-client are needed"
            )
        for page in sorted(Path(self.root, MANUALS).iterdir()):
            build_data["shared_data"][f"{MANUALS}/{page.name}"] = f"share/man/man1/{page.name}"
