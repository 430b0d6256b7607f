"""`kubectl kcover ...` is completed by kubectl itself, which runs our `kubectl_complete-kcover`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (("app",), {"approve"}),
        (("n",), {"nodes"}),
        (("list", "--all"), {"--all-namespaces"}),
        (("list", "-o", "j"), {"json"}),
        (("approve", ""), set()),
    ],
)
def test_kubectl_completion(kubectl: Path, words: tuple[str, ...], candidates: set[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [kubectl, "__complete", "kcover", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    *offers, directive = done.stdout.splitlines()
    assert {offer.partition("\t")[0] for offer in offers} == candidates
    assert directive == ":4"
