"""What PyTorch's recorder says of ranks, as facts."""

from __future__ import annotations

from typing import Any

from kcover_ebpf.collectives.recorder.recorder_dump import read, record_of
from kcover_ebpf.facts.recorders import RankRecord
from kcover_ebpf.ids import Pid
from testbed.driver.recorder_dumps import dump, pickled


def record(rank: int, calls: list[dict[str, Any]], **parts: Any) -> RankRecord:
    return record_of(read(pickled(dump(calls, **parts))), Pid(100 + rank), rank)
