"""The last report of each gang, on disk: what an agent that died had seen, and what it had sent.

Never sent as it is. The next agent takes from it what cannot be observed again (a death, a device fault), and which
reports are its own to delete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.agent.state_file import write_json
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.verdict import Verdict, VerdictKind

_MOST = 256
_ANNOUNCED = (VerdictKind.CRASHED, VerdictKind.DEVICE_FAULT)
"""Verdicts on events that are seen once; every other fault can be seen again."""


@dataclass(frozen=True, slots=True)
class CachedReport:
    """A report as an earlier agent left it."""

    namespace: str
    name: str
    report: FaultReport

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


class ReportCache:
    """A directory of at most 256 small files. A full or broken disk costs only the memory of the past."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.failures = 0

    def load(self) -> list[CachedReport]:
        """All reports that can be read."""
        return list(self._read())

    def _read(self) -> Iterator[CachedReport]:
        for path in sorted(self._folder.glob("*.json"))[:_MOST]:
            try:
                yield REPORT.decode(CachedReport, json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, RecursionError, ObjectError):
                with contextlib.suppress(OSError):
                    path.unlink()

    def save(self, namespace: str, name: str, report: FaultReport) -> None:
        """Save this as the last report; the snapshot is left out, because it can be taken again."""
        path = self._path(namespace, name)
        kept = CachedReport(
            namespace, name, replace(report, ranks=(), logs=(), collectives=None, recorders=None)
        )
        try:
            if not path.exists() and sum(1 for _ in self._folder.glob("*.json")) >= _MOST:
                return
            write_json(path, kept, REPORT.encode)
        except OSError:
            self.failures += 1

    def forget(self, namespace: str, name: str) -> None:
        """Remove the file of a deleted report."""
        with contextlib.suppress(OSError):
            self._path(namespace, name).unlink()

    def _path(self, namespace: str, name: str) -> Path:
        digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:32]
        return self._folder / f"{digest}.json"


def inherited(left_report: FaultReport, pod_uids: frozenset[str], now_s: float) -> Verdict | None:
    """What an earlier agent saw of these pods that cannot be seen again; None if that is too old, or nothing."""
    verdict, age_s = left_report.verdict, now_s - left_report.time_s
    if verdict is None or verdict.kind not in _ANNOUNCED:
        return None
    if (
        not 0 <= age_s <= left_report.expires_after_s
        or {pod.uid for pod in left_report.pods} != pod_uids
    ):
        return None
    return verdict
