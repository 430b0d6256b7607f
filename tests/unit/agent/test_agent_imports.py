"""What the processes of an agent import is resident on each node: what few of them need is imported when it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
IMPORTED = {
    "import kcover_ebpf.agent.main": ("re2", "kubernetes", "uuid", "platform"),
    "from kcover_ebpf.agent.reader.program import operations_of; operations_of('logs')": (
        "hashlib",
        "importlib.resources",
        "ctypes",
    ),
    "from kcover_ebpf.agent.reader.program import operations_of; operations_of('threads')": (
        "hashlib",
        "re2",
        "importlib.resources",
    ),
}


@pytest.mark.parametrize("program", IMPORTED)
def test_agent_imports__what_few_need_is_imported_when_it_is_needed(program: str) -> None:
    asked = f"import sys; sys.path[:0] = sys.argv[1:]; {program}; print(*sys.modules)"
    places = [str(ROOT), *sys.path]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", asked, *places],
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(done.stdout.split())
    assert "kcover_ebpf.agent" in modules
    assert modules.isdisjoint(IMPORTED[program])
