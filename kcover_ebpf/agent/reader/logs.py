"""The reader of container logs: turns over those that are followed, and the ends of some for a bundle."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcover_ebpf.agent.reader.form import decode, encode
from kcover_ebpf.agent.reader.program import Note, Operation
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.json_values import WrongValue
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.host.capabilities import Capability
from kcover_ebpf.logs.wanted_logs import LogTurn, WantedLog
from kcover_ebpf.tunables.agent import BUNDLE_LIMIT_S, LOG_TURN_S, READER_CPU_S
from kcover_ebpf.tunables.host import LONGEST_PHASE_S

if TYPE_CHECKING:
    from kcover_ebpf.agent.reader.client import ConfinedReader
    from kcover_ebpf.logs.log_turns import LogTurns

CONFINEMENT = Confinement(
    data_bytes=48 << 20,
    cpu_s=READER_CPU_S,
    kept=frozenset({Capability.DAC_READ_SEARCH}),
    address_bytes=1 << 30,
    # two for each log
    open_files=1024,
)
_TAIL_BYTES = 16 * 1024
_MOST_TAILS = 24
"""In one frame."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Where the logs are and what is recognised in them; files of the operator, by path."""

    folder: Path
    rules: Path | None = None
    catalog: Path | None = None
    longest_phase_s: float = LONGEST_PHASE_S
    """What a program announces for longer is refused."""


class ReadLogs:
    """The agent's side: what `LogWatch` and bundles ask."""

    def __init__(self, reader: ConfinedReader, plan: LogPlan) -> None:
        self._reader = reader
        self._plan = {
            "folder": os.fspath(plan.folder),
            "rules": os.fspath(plan.rules) if plan.rules else "",
            "catalog": os.fspath(plan.catalog) if plan.catalog else "",
        }
        self._longest_phase_s = plan.longest_phase_s

    @property
    def starts(self) -> int:
        """Changes where the reader is another one."""
        return self._reader.starts

    def turn(self, wanted: Sequence[WantedLog] | None) -> LogTurn:
        """As `LogSource` says."""
        arguments = {
            "plan": self._plan,
            "longest_phase_s": self._longest_phase_s,
            "asked": None if wanted is None else _packed(wanted),
        }
        try:
            return decode(LogTurn, self._reader.ask("turn", arguments, LOG_TURN_S))
        except WrongValue as error:
            raise ReaderError(f"it answered what makes no sense: {error}") from error

    def tails(self, namespace: str, pod_uids: Sequence[str]) -> dict[str, str]:
        """The end of each container's newest log, by POD.CONTAINER.log; raises `ReaderError`."""
        arguments = {"folder": self._plan["folder"], "namespace": namespace, "uids": list(pod_uids)}
        found = self._reader.ask("tails", arguments, BUNDLE_LIMIT_S)
        if not isinstance(found, dict):
            raise ReaderError("it answered what makes no sense")
        return {_plain(name): str(text) for name, text in found.items()}


def _packed(wanted: Sequence[WantedLog]) -> Mapping[str, Any]:
    """Each rule once: a frame has an end, and the containers of a job have the same rules."""
    places: dict[JobRule, int] = {}
    logs = []
    for wanted_log in wanted:
        rules = [places.setdefault(rule, len(places)) for rule in wanted_log.job_rules]
        logs.append({"log": encode(replace(wanted_log, job_rules=())), "rules": rules})
    return {"rules": [encode(rule) for rule in places], "logs": logs}


def _unpacked(asked: Mapping[str, Any]) -> list[WantedLog]:
    rules = [decode(JobRule, rule) for rule in asked["rules"]]
    return [
        replace(
            decode(WantedLog, log["log"]), job_rules=tuple(rules[place] for place in log["rules"])
        )
        for log in asked["logs"]
    ]


def _plain(name: str) -> str:
    """As the name of a file: what answers may have been taken over."""
    return "".join(text if text.isalnum() or text in "-._" else "_" for text in name)[:200].lstrip(
        "."
    )


def operations() -> Mapping[str, Operation]:
    """The reader's side."""
    return {"turn": _Turns().turn, "tails": _tails}


class _Turns:
    def __init__(self) -> None:
        from kcover_ebpf.devices.catalog import files as catalog
        from kcover_ebpf.logs import rules
        from kcover_ebpf.logs.log_turns import LogTurns as Turns

        self._load_catalog, self._load_rules, self._make = catalog.load, rules.load, Turns
        self._turns: LogTurns | None = None
        self._lock = threading.Lock()

    def turn(self, arguments: Mapping[str, Any], _: list[int], note: Note) -> Any:
        """One at a time: a turn that was given up may still be under way."""
        with self._lock:
            if self._turns is None:
                plan = {
                    name: Path(text) if text else None for name, text in arguments["plan"].items()
                }
                rules = self._load_rules(plan["rules"])
                self._turns = self._make(
                    plan["folder"] or Path("/"),
                    rules,
                    self._load_catalog(plan["catalog"]),
                    longest_phase_s=arguments["longest_phase_s"],
                )
            asked = arguments["asked"]
            wanted = None if asked is None else _unpacked(asked)
            return encode(self._turns.turn(wanted, note))


def _tails(arguments: Mapping[str, Any], _: list[int], note: Note) -> Any:
    folder = Path(arguments["folder"])
    texts: dict[str, str] = {}
    for uid in arguments["uids"]:
        for pod, container, text in _tails_of(folder, arguments["namespace"], uid):
            note(f"{uid}/{container}")
            if len(texts) < _MOST_TAILS:
                texts[f"{pod}.{container}.log"] = text
    # what is no text is six bytes for each: the oldest goes first
    while texts and len(json.dumps(texts)) > 800_000:
        texts.pop(next(iter(texts)))
    return texts


def _tails_of(folder: Path, namespace: str, uid: str) -> Iterator[tuple[str, str, str]]:
    from kcover_ebpf.logs.log_files import LogFiles, UnsafeLogError

    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names alone
        if not (name.startswith(f"{namespace}_") and name.endswith(f"_{uid}")):
            continue
        for container in sorted(os.listdir(folder / name)):  # noqa: PTH208
            files = LogFiles(folder, name, container, tail_bytes=_TAIL_BYTES)
            try:
                chunk = files.read(_TAIL_BYTES)
            except (UnsafeLogError, OSError) as error:
                yield name.split("_")[1], container, f"not read: {error}"
                continue
            finally:
                files.close()
            if chunk is not None:
                yield name.split("_")[1], container, chunk.data.decode("utf-8", "replace")
