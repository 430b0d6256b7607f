"""Wheel build hook: compiles the BPF objects before hatchling collects them.

An editable install skips it: `make build` compiles the objects in place.
"""

import shutil
import subprocess
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ObjectsHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if shutil.which("make") is None:
            self.app.abort("building the wheel compiles BPF: install make, clang-14 and llvm-14")
        try:
            subprocess.run(["make", "--silent", "objects"], cwd=self.root, check=True)
        except subprocess.CalledProcessError:
            self.app.abort("`make objects` failed: clang-14, llvm-14 and libbpf-dev are needed")
