"""Operations of the process that reads container logs: one turn over all followed logs, and ends of some logs.

Separate from the agent's side (`logs`), because every import here costs memory in one more process.
"""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kcover_ebpf.agent.reader.program import Note, Operation, decode, encode
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.logs import rules, secret_masking
from kcover_ebpf.logs.log_files import LogFiles, UnsafeLogError
from kcover_ebpf.logs.log_turns import LogTurns
from kcover_ebpf.logs.wanted_logs import WantedLog

_TAIL_BYTES = 16 * 1024
_READ_BYTES = 2 * _TAIL_BYTES
"""Bytes read before the requested end: a secret is recognised by what precedes it, a name or the first line of a
key.
"""
_MOST_ENDS_BYTES = 900_000
"""Bytes of the ends of all logs, encoded: the rest of a frame is for their names."""
_MOST_TAILS = 256
"""Most names of logs in one frame."""
_LEFT_OUT = "not kept: the logs of this job on this node are too many"


def _unpacked(asked: Mapping[str, Any]) -> list[WantedLog]:
    rules = [decode(JobRule, rule) for rule in asked["rules"]]
    return [
        replace(
            decode(WantedLog, log["log"]), job_rules=tuple(rules[place] for place in log["rules"])
        )
        for log in asked["logs"]
    ]


def operations() -> Mapping[str, Operation]:
    """Operation name -> function that carries it out."""
    return {"turn": _Turns().turn, "tails": _tails}


class _Turns:
    def __init__(self) -> None:
        self._turns: LogTurns | None = None
        self._lock = threading.Lock()

    def turn(self, arguments: Mapping[str, Any], _: list[int], note: Note) -> Any:
        """Run turns one at a time: an abandoned turn may still be in progress."""
        with self._lock:
            if self._turns is None:
                plan = {
                    name: Path(text) if text else None for name, text in arguments["plan"].items()
                }
                self._turns = LogTurns(
                    plan["folder"] or Path("/"),
                    rules.load(plan["rules"]),
                    longest_phase_s=arguments["longest_phase_s"],
                )
            asked = arguments["asked"]
            wanted = None if asked is None else _unpacked(asked)
            return encode(self._turns.turn(wanted, note))


def _tails(arguments: Mapping[str, Any], _: list[int], note: Note) -> Any:
    folder = Path(arguments["folder"])
    texts: dict[str, str] = {}
    left_bytes = _MOST_ENDS_BYTES
    for uid in arguments["uids"]:
        for pod, container, text in _tails_of(folder, arguments["namespace"], uid):
            note(f"{uid}/{container}")
            encoded = _encoded(text)
            if len(encoded) > left_bytes:
                encoded = _encoded(_LEFT_OUT)
            left_bytes -= len(encoded)
            texts[f"{pod}.{container}.log"] = encoded
            if len(texts) >= _MOST_TAILS:
                return texts
    return texts


def _encoded(text: str) -> str:
    """Without brackets and commas, of which a frame may have only so many."""
    return b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _tails_of(folder: Path, namespace: str, uid: str) -> Iterator[tuple[str, str, str]]:
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - names alone
        if not (name.startswith(f"{namespace}_") and name.endswith(f"_{uid}")):
            continue
        try:
            containers = sorted(os.listdir(folder / name))  # noqa: PTH208
        except OSError:  # the kubelet has just removed the pod, which costs the others nothing
            continue
        for container in containers:
            files = LogFiles(folder, name, container, tail_bytes=_READ_BYTES)
            try:
                chunk = files.read(_READ_BYTES)
            except (UnsafeLogError, OSError) as error:
                yield name.split("_")[1], container, f"not read: {error}"
                continue
            finally:
                files.close()
            if chunk is not None:
                text = chunk.data.decode("utf-8", "replace")
                if not chunk.is_first:  # what precedes the rest of its first line is unknown
                    text = text[text.find("\n") + 1 :]
                end = secret_masking.end_of(secret_masking.masked(text), _TAIL_BYTES)
                yield name.split("_")[1], container, end
