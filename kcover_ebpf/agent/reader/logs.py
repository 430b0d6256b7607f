"""The agent's side of the reader of container logs: turns over those that are followed, ends of some for a bundle."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcover_ebpf.agent.reader.program import decode, encode
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.json_values import WrongValue
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.logs.wanted_logs import LogTurn, WantedLog
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S, LOG_TURN_S, READER_CPU_S
from kcover_ebpf.tunables.host import LONGEST_PHASE_S

if TYPE_CHECKING:
    from kcover_ebpf.agent.reader.client import ConfinedReader

CONFINEMENT = Confinement(
    data_bytes=48 << 20,
    cpu_s=READER_CPU_S,
    kept=frozenset({Capability.DAC_READ_SEARCH}),
    address_bytes=1 << 30,
    # two for each log
    open_files=1024,
)


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Where the logs are and which rules apply to them; the operator's files, by path."""

    folder: Path
    rules: Path | None = None
    longest_phase_s: float = LONGEST_PHASE_S
    """Longest phase in seconds that a program may announce; a longer one is refused."""


class ReadLogs:
    """The agent's side, used by `LogWatch` and bundles."""

    def __init__(self, reader: ConfinedReader, plan: LogPlan) -> None:
        self._reader = reader
        self._plan = {
            "folder": os.fspath(plan.folder),
            "rules": os.fspath(plan.rules) if plan.rules else "",
        }
        self._longest_phase_s = plan.longest_phase_s

    @property
    def starts(self) -> int:
        """Number of starts of the reader process; see `LogSource`."""
        return self._reader.starts

    def turn(self, wanted: Sequence[WantedLog] | None) -> LogTurn:
        """Read a block of each log; see `LogSource`."""
        arguments = {
            "plan": self._plan,
            "longest_phase_s": self._longest_phase_s,
            "asked": None if wanted is None else _packed(wanted),
        }
        try:
            return decode(LogTurn, self._reader.ask("turn", arguments, LOG_TURN_S))
        except WrongValue as error:
            raise ReaderError(f"its answer is invalid: {error}") from error

    def tails(self, namespace: str, pod_uids: Sequence[str]) -> dict[str, str]:
        """The end of each container's newest log, by POD.CONTAINER.log; raises `ReaderError`."""
        arguments = {"folder": self._plan["folder"], "namespace": namespace, "uids": list(pod_uids)}
        found = self._reader.ask("tails", arguments, BUNDLE_LIMIT_S)
        if not isinstance(found, dict):
            raise ReaderError("its answer is invalid")
        try:
            return {
                _plain(name): b64decode(text, validate=True).decode("utf-8", "replace")
                for name, text in found.items()
            }
        except (TypeError, ValueError) as error:
            raise ReaderError("its answer is invalid") from error


def _packed(wanted: Sequence[WantedLog]) -> Mapping[str, Any]:
    """Request in which each rule occurs once: frames have a size limit, and containers of a job share their rules."""
    places: dict[JobRule, int] = {}
    logs = []
    for wanted_log in wanted:
        rules = [places.setdefault(rule, len(places)) for rule in wanted_log.job_rules]
        logs.append({"log": encode(replace(wanted_log, job_rules=())), "rules": rules})
    return {"rules": [encode(rule) for rule in places], "logs": logs}


def _plain(name: str) -> str:
    """The text made safe as a file name: the process that answered may be compromised."""
    return "".join(text if text.isalnum() or text in "-._" else "_" for text in name)[:200].lstrip(
        "."
    )
