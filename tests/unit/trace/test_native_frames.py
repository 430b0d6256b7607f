"""The process that reads native frames, with a symbolizer that is made up."""

from __future__ import annotations

import io
import json

import pytest

from kcover_ebpf.host import capabilities, stack_frames
from kcover_ebpf.trace import native_frames


class Symbolizer:
    """Keeps count of the processes whose libraries are open."""

    opened: int = 0
    most: int = 0

    def __init__(self, pid: int) -> None:
        self.pid = pid
        Symbolizer.opened += 1
        Symbolizer.most = max(Symbolizer.most, Symbolizer.opened)

    def name(self, address: int) -> str:
        return f"f{address} of {self.pid}"

    def close(self) -> None:
        Symbolizer.opened -= 1


def test_main__the_libraries_of_one_process_are_open_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of four ranks of torch are more than the descriptors of a reader: the last had no symbols."""
    monkeypatch.setattr(native_frames, "Symbols", Symbolizer)
    monkeypatch.setattr(capabilities, "renounce", lambda *_: None)
    monkeypatch.setattr(stack_frames, "kernel_frames", lambda *_: ["futex_wait"])
    monkeypatch.setattr(stack_frames, "return_addresses", lambda *_: [1])
    monkeypatch.setattr("sys.stdin", io.StringIO("7 7\n9 9\n7 8\n9 10\n"))
    assert native_frames.main() == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(answer["pid"], answer["tid"]): answer["native"] for answer in answers}
    assert found == {
        (7, 7): ["f1 of 7"], (7, 8): ["f1 of 7"], (9, 9): ["f1 of 9"], (9, 10): ["f1 of 9"]
    }  # fmt: skip
    assert (Symbolizer.most, Symbolizer.opened) == (1, 0)
