"""The meaning of every Xid (GPU) and SXid (NVSwitch) number: vocabulary and judgement.

The data files next to this module say, for each number, where the fault usually lies, what to do, and whether the
job that was hit can continue. `judge` lets the driver's message override the data file: Xid 154 states the recovery
action, memory errors state whether a reset is needed, and NVLink and NVSwitch lines say whether they are fatal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from functools import partial
from typing import Any

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.catalog import nvlink5

FIRST_SXID = 10000
"""Numbers from here on are SXids; the driver chose the offset to keep them apart from Xids
(ctrl_dev_nvswitch.h)."""


class Domain(Enum):
    """Where the fault most likely lies, before any further evidence."""

    APPLICATION = "application"
    DRIVER = "driver"
    HARDWARE = "hardware"
    FABRIC = "fabric"


class Survival(Enum):
    """Whether the job that was hit can continue."""

    YES = "yes"
    NO = "no"
    DEPENDS = "depends"


class Action(Enum):
    """The recommended action; a closed list."""

    NONE = "none"
    RESTART_APP = "restart_app"
    CHECK_APP = "check_app"
    CHECK_PEER = "check_peer"
    CHECK_PCIE = "check_pcie"
    CHECK_LINK = "check_link"
    CHECK_HOST = "check_host"
    CHECK_POWER = "check_power"
    CHECK_COOLING = "check_cooling"
    CHECK_FABRIC_MANAGER = "check_fabric_manager"
    FOLLOW_PRIMARY = "follow_primary"
    FOLLOW_TEXT = "follow_text"
    DECODE = "decode"
    RESET_WHEN_IDLE = "reset_when_idle"
    DRAIN_P2P = "drain_p2p"
    RECOVER_IMEX = "recover_imex"
    RESET_GPU = "reset_gpu"
    RESET_FABRIC = "reset_fabric"
    RESTART_VM = "restart_vm"
    REBOOT_NODE = "reboot_node"
    UPDATE_DRIVER = "update_driver"
    CONTACT_SUPPORT = "contact_support"


DEVICE_UNFIT = frozenset(
    {Action.RESET_GPU, Action.RESET_FABRIC, Action.RESTART_VM, Action.REBOOT_NODE}
)
"""Actions on the device that restarting the job on the same device cannot replace."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The meaning of one number in one range of driver versions."""

    number: int
    mnemonic: str
    meaning: str
    domain: Domain
    action: Action
    survival: Survival
    advice: str
    source: tuple[str, ...]
    """Documents that the entry is based on, with their full titles."""
    disagreement: str = ""
    """How published sources contradict each other; empty if they agree."""
    says: Mapping[str, str] = field(default_factory=dict)
    """Recommendations of other publishers, verbatim, by publisher."""
    since: str = ""
    """First driver version with this meaning; empty: no lower bound."""
    until: str = ""
    """Last driver version with this meaning; empty: still valid."""

    @property
    def name(self) -> str:
        """Number with its kind, as messages show it: "Xid 79" or "SXid 12028"."""
        return f"{'SXid' if self.number >= FIRST_SXID else 'Xid'} {self.number}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The consequences of one report for the job that uses the device."""

    action: Action
    device_unfit: bool
    """The device must be reset before any job can use it again."""
    ends_job: bool
    """The job is lost, and not because of its own program: the verdict is DEVICE_FAULT."""
    reason: str
    """The text that decided: from the driver's message if it was specific, otherwise from the catalogue."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All entries. A number whose meaning changed has one entry for each range of driver versions."""

    entries: Mapping[int, tuple[Entry, ...]]

    def find(self, number: int, driver: str | None = None) -> Entry | None:
        """The entry of a number for one driver version (None: the newest version); None if it is not documented."""
        variants = self.entries.get(number, ())
        if driver:
            variants = tuple(entry for entry in variants if _covers(entry, driver)) or variants[-1:]
        return variants[-1] if variants else None

    def variants(self, number: int) -> tuple[Entry, ...]:
        """Every meaning that the number has had, oldest first."""
        return self.entries.get(number, ())

    def replaced(self, number: int, entries: tuple[Entry, ...]) -> Catalog:
        """A copy of the catalogue with other entries for one number."""
        return Catalog({**self.entries, number: entries})


def version_key(version: str) -> tuple[int, ...]:
    """Order of driver versions like "570.86.15"; words without a number sort first."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _covers(entry: Entry, driver: str) -> bool:
    key = version_key(driver)
    newer = not entry.since or version_key(entry.since) <= key
    # "535.288.01" as last version includes every build of it; a bare branch includes the branch
    last = version_key(entry.until)
    return newer and (not last or key[: len(last)] <= last)


_RECOVERY = re.compile(
    r"recovery action changed from 0x[0-9a-fA-F]+ \([^()]*\) to 0x([0-9a-fA-F]+) \(([^()]*)\)"
)
# driver: src/nvidia/src/kernel/gpu/gpu.c, the action is logged on change only
_RECOVERY_ACTION = {
    0: (Action.NONE, Survival.YES),
    1: (Action.RESET_GPU, Survival.NO),
    2: (Action.REBOOT_NODE, Survival.NO),
    3: (Action.DRAIN_P2P, Survival.DEPENDS),
    4: (Action.RESET_WHEN_IDLE, Survival.YES),
    5: (Action.RECOVER_IMEX, Survival.DEPENDS),
}
_RESET_FLAG = re.compile(r"(?<!D-)RST: (Yes|No)")
_RECOVERY_WORDS = (
    (re.compile(r"(?i)reboot"), Action.REBOOT_NODE, Survival.NO),
    (re.compile(r"(?i)drain and reset"), Action.RESET_WHEN_IDLE, Survival.YES),
    (re.compile(r"(?i)drain"), Action.DRAIN_P2P, Survival.DEPENDS),
    (re.compile(r"(?i)imex"), Action.RECOVER_IMEX, Survival.DEPENDS),
    (re.compile(r"(?i)reset|flr"), Action.RESET_GPU, Survival.NO),
)
"""Recovery actions by the words of a message, for a number that is newer than the table."""
_NVLINK5 = range(144, 151)
_SXID_SEVERITY = re.compile(r"^(Fatal|Non-fatal|Correctable)\b")


def judge(entry: Entry, text: str = "") -> Judgement:
    """The consequences of a report of `entry` with the driver's message `text`; the message overrides the table."""
    action, survival, reason = _from_message(entry, text) or (
        entry.action,
        entry.survival,
        entry.meaning,
    )
    secondary = action in (Action.FOLLOW_PRIMARY, Action.FOLLOW_TEXT)
    lost = survival is Survival.NO and not secondary and entry.domain is not Domain.APPLICATION
    return Judgement(action, action in DEVICE_UNFIT, lost, reason)


def _from_message(entry: Entry, text: str) -> tuple[Action, Survival, str] | None:
    if entry.action is Action.FOLLOW_TEXT and (match := _RECOVERY.search(text)):
        stated = _RECOVERY_ACTION.get(int(match[1], 16)) or next(
            ((what, how) for words, what, how in _RECOVERY_WORDS if words.search(match[2])), None
        )
        return (*stated, match[2]) if stated else None
    if (match := _RESET_FLAG.search(text)) and match[1] == "Yes":
        return Action.RESET_GPU, Survival.NO, match[0]
    if entry.number in _NVLINK5 and (fault := nvlink5.fault(text)) is not None:
        if fault.is_injected:
            return Action.NONE, Survival.YES, fault.text
        if entry.action is Action.DECODE:
            action = Action.RESET_GPU if fault.is_fatal else Action.CHECK_LINK
            return action, Survival.NO if fault.is_fatal else Survival.YES, fault.text
    if entry.number >= FIRST_SXID and (match := _SXID_SEVERITY.search(text)):
        if match[1] != "Fatal":
            return (
                entry.action if entry.action not in DEVICE_UNFIT else Action.CHECK_LINK,
                Survival.YES,
                match[0],
            )
        action = entry.action if entry.action in DEVICE_UNFIT else Action.RESET_FABRIC
        return action, Survival.NO, match[0]
    return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _word(kind: type[Enum], value: object) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(item.value) for item in kind)
        raise ValueError(f"no {kind.__name__.lower()} {value!r}; use one of {known}") from None


def override(entry: Entry, changes: Mapping[str, object]) -> Entry:
    """`entry` with an operator's changes; raises KeyError (no such field) or ValueError (unknown word).

    If the action changes, the recommendations for the old action are dropped.
    """
    readers: dict[str, Callable[[object], Any]] = {
        "mnemonic": _text,
        "meaning": _text,
        "advice": _text,
        "domain": partial(_word, Domain),
        "action": partial(_word, Action),
        "survival": partial(_word, Survival),
    }
    values = {key: readers[key](value) for key, value in changes.items()}
    if values.get("action", entry.action) is not entry.action:
        values.setdefault("advice", "")
    return replace(entry, **values, source=(*entry.source, "operator"))
