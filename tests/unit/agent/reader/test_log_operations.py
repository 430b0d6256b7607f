"""The ends of logs as a reader of logs answers them: in one frame, whatever is in them and however many there are."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import pytest

from kcover_ebpf.agent.reader.log_operations import operations
from kcover_ebpf.confined.frames import pack

pytestmark = pytest.mark.needs("root")
HEAD = "2026-11-28T10:00:00.5Z stderr F "
RECORD = '{"level":"info","loss":[1,2,3],"rank":{"of":[]},"more":{}}'


def keep(folder: Path, pod: int, lines: str, containers: int = 1) -> str:
    """Write the logs of a pod; returns its uid."""
    for number in range(containers):
        path = folder / f"ns_j-{pod}_uid-{pod}" / f"c{number}" / "0.log"
        path.parent.mkdir(parents=True)
        path.write_text(lines)
    return f"uid-{pod}"


def ends(folder: Path, uids: list[str]) -> dict[str, str]:
    asked = {"folder": str(folder), "namespace": "ns", "uids": uids}
    found = operations()["tails"](asked, [], lambda _: None)
    pack({"id": 1, "is": found})
    return {name: b64decode(text).decode() for name, text in found.items()}


def test_log_operations__logs_full_of_brackets_fit_into_a_frame(tmp_path: Path) -> None:
    uids = [keep(tmp_path, pod, f"{HEAD}{RECORD}\n" * 400, containers=3) for pod in range(8)]
    found = ends(tmp_path, uids)
    assert len(found) == 24
    assert all(text.endswith(f"{RECORD}\n") for text in found.values())


@pytest.mark.parametrize("lines", [f"{HEAD}µ\n" * 2000, "ÿ" * 40_000], ids=["lines", "no line"])
def test_log_operations__those_that_do_not_fit_are_named(tmp_path: Path, lines: str) -> None:
    uids = [keep(tmp_path, pod, lines, containers=10) for pod in range(8)]
    found = ends(tmp_path, uids)
    assert len(found) == 80
    left_out = [name for name, text in found.items() if text.startswith("not kept: ")]
    assert 0 < len(left_out) < 70


def test_log_operations__a_pod_that_has_just_been_removed_costs_the_others_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "ns_j-0_uid-0").touch()
    found = ends(tmp_path, ["uid-0", keep(tmp_path, 1, f"{HEAD}step 7\n")])
    assert found == {"j-1.c0.log": f"{HEAD}step 7\n"}
