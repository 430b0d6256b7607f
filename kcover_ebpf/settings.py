"""Every setting of the sensor, with its unit, its default and its reason.

`Settings` is built once from flags (and, in a cluster, chart values) and passed down; nothing else is global.
`Policy` is the part that a user writes into a policy file (`--policy FILE`, TOML); durations there are text with a
unit ("500ms", "3s", "2m", "1h", "7d"), so that no reader has to guess. `read_table` reads each file that an operator
writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.tunables.host import LONGEST_PHASE_S

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MOST = 1e9
"""Upper limit of every duration: 30 years; a larger number was meant to be infinite."""
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) per (\d{1,9}(?:\.\d{1,6})?)h")
_LEAST_RATE = 1e-6
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Act(Enum):
    """How far a decision may go; each level includes the ones before it."""

    OBSERVE = "observe"
    SNAPSHOT = "snapshot"
    SHUTDOWN = "shutdown"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """How often a job may be restarted, and after which pauses; times in seconds."""

    max: int = 3
    window_seconds: int = 86400
    """Restarts within this window count; `run` counts all."""
    backoff_seconds: float = 10
    backoff_max_seconds: float = 600

    def pause_s(self, earlier: int) -> float:
        """Pause before a restart after this many earlier ones; the first restart is immediate."""
        if earlier == 0:
            return 0.0
        doubled: float = self.backoff_seconds * 2.0 ** min(earlier - 1, 32)
        return min(doubled, float(self.backoff_max_seconds))


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds and budgets; all times in seconds."""

    stall_floor_s: float = 1.6
    """No silent rank is called stalled before this: shorter silences may be scheduling noise and collection pauses."""
    stall_factor: float = 1.5
    """A gap counts as a stall when it is this many times the longest gap learned from healthy steps."""
    stopped_s: float = 5.0
    """A rank stopped (or frozen) alone for this long is a fault; the whole job stopped together never is.

    Tools that freeze on purpose (a commit or a checkpoint of a container) take 2 to 4 s.
    """
    quiet_cap_s: float = 1800.0
    """How long a rank that is busy while others wait (checkpoint, evaluation, compilation) is believed to be
    healthy.
    """
    storage_patience_s: float = 300.0
    """Time for a storage call, an outside service or a helper program that is not proven stuck.

    Servers take minutes to fail over, objects to upload. A verdict then comes half-way to the frameworks' own 10
    minutes.
    """
    link_patience_s: float = 60.0
    """Time for a lost link to recover before a job is ended for it; the loss itself is reported at once.

    After an outage of 40 s (a switch that restarts), TCP's next retransmission follows 51 s after the link broke.
    """
    core_dump_patience_s: float = 60.0
    """Time for a crashed rank to write its core before the job is ended, which would truncate the core."""
    port_patience_s: float = 60.0
    """Time for an RDMA port that is down to recover before it is a fatal fault.

    Retries of the transport last about 30 s, and a restarting switch is away for most of a minute.
    """
    start_grace_s: float = 20.0
    """Longest wait for missing ranks after the last one that appeared; usually the ranks that came set a shorter
    one.
    """
    false_restarts_per_h: float = 0.001
    """Needless restarts accepted per hour of training.

    Together with the job's own past, this determines how long an inferred fault may take to end by itself.
    """
    act_floor_s: float = 10.0
    """No job is ended for an inferred fault before this."""
    act_cap_s: float = 120.0
    """No inferred fault waits longer than this, unless the job was once silent for longer and continued."""
    hard_limit_s: float | None = None
    """Shut down after this long without any progress, on time alone; None (the default): never."""
    max_restarts: int = 3
    """Restarts of one job before `run --act restart` gives up."""
    backoff_s: float = 1.0
    """Pause before the first restart; doubled for each further restart."""
    backoff_max_s: float = 60.0
    grace_s: float = 5.0
    """Time between SIGTERM and SIGKILL when the *user* ends the job; a shutdown on a verdict kills at once."""

    @property
    def restarts(self) -> RestartBudget:
        """The restart budget of `run`."""
        return RestartBudget(
            self.max_restarts,
            backoff_seconds=self.backoff_s,
            backoff_max_seconds=self.backoff_max_s,
        )

    @classmethod
    def from_file(cls, path: Path) -> Policy:
        """Read a policy; raises `PolicyError` for anything that is not exactly a known setting."""
        return cls.of(read_table(path, "policy"), f"policy {path}")

    @classmethod
    def of(cls, table: Mapping[str, object], where: str) -> Policy:
        """A policy from settings by name; raises `PolicyError`, which begins with `where`."""
        known = {_policy_key(item.name): item.name for item in fields(cls)}
        values: dict[str, float | int | None] = {}
        for key, raw in table.items():
            if key not in known:
                raise PolicyError(
                    f"{where}: unknown key {key!r}; known: {', '.join(sorted(known))}"
                )
            values[known[key]] = _policy_value(where, key, known[key], raw)
        return replace(cls(), **values)  # type: ignore[arg-type]


def _policy_key(name: str) -> str:
    return name.removesuffix("_per_h").removesuffix("_s")


def _rate_per_h(where: str, key: str, raw: object) -> float:
    match = _RATE.fullmatch(raw.strip()) if isinstance(raw, str) else None
    if match is None or float(match[2]) <= 0:
        raise PolicyError(
            f'{where}: {key} needs a number per hours, for example {key} = "1 per 1000h"'
        )
    rate = float(match[1]) / float(match[2])
    if not _LEAST_RATE <= rate <= 1.0:
        raise PolicyError(f"{where}: {key} must be between 1 per 1h and 1 per 1000000h")
    return rate


def _policy_value(where: str, key: str, name: str, raw: object) -> float | int | None:
    if name.endswith("_per_h"):
        return _rate_per_h(where, key, raw)
    if name.endswith("_s"):
        if name == "hard_limit_s" and raw == "never":
            return None
        if not isinstance(raw, str):
            raise PolicyError(f'{where}: {key} needs a unit, for example {key} = "3s"')
        try:
            return parse_duration(raw)
        except ValueError as error:
            raise PolicyError(f"{where}: {key}: {error}") from error
    # a comparison that is also false for NaN
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0 <= raw <= _MOST:
        raise PolicyError(f"{where}: {key} must be a number from 0 to {_MOST:.0f}")
    if name == "max_restarts":
        if not isinstance(raw, int):
            raise PolicyError(f"{where}: {key} must be a whole number")
        return raw
    return float(raw)


def parse_duration(text: str) -> float:
    """Seconds in "500ms", "3s", "2m", "1h" or "7d"; raises `ValueError` with a hint for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a duration; write a number and ms, s, m, h or d, like 30s"
        )
    seconds = float(match[1]) * _UNIT_S[match[2]]
    if seconds > _MOST:
        raise ValueError(f"{text[:20]!r} is longer than 30 years; write a shorter one, like 30s")
    return seconds


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the sensor itself, apart from judging."""

    period_s: float = 1.0
    """Sampling period while no job is suspicious."""
    suspicious_period_s: float = 0.25
    """Sampling period while some job is suspicious."""
    ring_bytes: int = 256 * 1024
    """Size of the event ring buffer; a power of two."""
    max_threads: int = 131072
    """The most threads that the sampler remembers; more are counted as lost."""
    gpu_period_s: float = 2.0
    """Time between two readings of each GPU by NVML, whose own averages are over a second or less."""
    pin_driver: bool = False
    """True: use the GPU driver's own tracepoint, although the driver cannot be unloaded meanwhile."""
    nccl_probes: bool = False
    """True: count the operations of ranks with probes in their NCCL; each call then takes microseconds longer."""
    longest_phase_s: float = LONGEST_PHASE_S
    """Longest phase that a program may announce in its log; a longer one is refused."""
    act: Act = Act.OBSERVE
    policy: Policy = field(default_factory=Policy)


_MOST_FILE_BYTES = 1 << 20
"""Larger than any file that people write; a device file or a log given by mistake has no end."""


def read_table(path: Path, what: str) -> dict[str, Any]:
    """The table in a file that an operator wrote: JSON if it begins with a brace, TOML otherwise.

    `what`: description of its content for messages ("policy", "job rules"). Raises `PolicyError`, which begins with
    it and the path.
    """
    # imported late: few runs read a file
    import json
    import tomllib

    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"cannot read {what} {path}: {error.strerror}") from error
    if len(raw) > _MOST_FILE_BYTES:
        raise PolicyError(f"{what} {path}: the file is larger than {_MOST_FILE_BYTES >> 20} MiB")
    is_json = raw.lstrip()[:1] == b"{"
    try:
        text = raw.decode("utf-8")
        table: dict[str, Any] = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # both also pass on errors of very long numbers and deep nesting
        form = "JSON" if is_json else "TOML"
        raise PolicyError(f"{what} {path}: the file is not valid {form}: {error}") from error
    return table
