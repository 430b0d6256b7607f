"""What the cluster bench says on a machine that cannot run it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["orders", "--bin", "/nowhere"], "no kube-apiserver in /nowhere: `tools/testbed up`"),
        (["replace"], "no cluster: run `tools/testbed up`"),
        (["agent"], "no cluster: run `tools/testbed up`"),
        (["rates", "--commit", "no-such"], "no commit no-such: name one with --commit"),
    ],
)
def test_clusterbench__what_is_lacking_is_reported_in_one_line(
    arguments: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "bench.clusterbench", *arguments]
    asked = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.returncode, asked.stderr.count("\n")) == (2, 1)
    assert asked.stderr.startswith(f"clusterbench: {said}")
