"""The steps of a restart: the order of steps with its reasons, and the detail that an incident keeps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from kcover_ebpf.dataclass import dataclass


class Step(Enum):
    """The condition that a restart waits for; the value is `status.action.step` of an Incident."""

    SAVE = "Save"
    STOP = "Stop"
    MOVE = "Move"
    KILL = "Kill"
    RESUME = "Resume"
    SETTLE = "Settle"
    SUSPEND = "Suspend"
    TERMINATE = "Terminate"
    DELETE = "Delete"
    GONE = "Gone"
    STUCK = "Stuck"
    PAUSE = "Pause"
    RELEASE = "Release"
    RETURN = "Return"
    PROGRESS = "Progress"
    ABANDON = "Abandon"
    FINAL_STOP = "FinalStop"
    DONE = "Done"
    FAILED = "Failed"


def step_of(word: str) -> Step | None:
    """The step of an action; None for one that another version of the controller wrote."""
    return next((step for step in Step if step.value == word), None)


_OTHER_METHOD: Mapping[Step, str] = {
    Step.SUSPEND: "this did not help, and the job has a switch: replace all pods",
    Step.DELETE: "this did not help, and the job has no switch: replace all pods",
    Step.FAILED: "no other restart method is left",
}
_NEW_PODS: Mapping[Step, str] = {
    Step.RETURN: "the old pods are gone, and the kind creates new ones by itself",
    Step.PAUSE: "the old pods are gone, and the policy wants a pause",
    Step.RELEASE: "the old pods are gone",
}
_FIRST: Mapping[Step, str] = {
    Step.STOP: "every pod can restart in place, or all but those that move",
    Step.SUSPEND: "replace, with the switch of the job",
    Step.DELETE: "replace, without a switch",
}
TRANSITIONS: Mapping[Step | None, Mapping[Step, str]] = {
    None: {
        **_FIRST,
        Step.SAVE: "healthy ranks are to save first, or one is saving",
        Step.SETTLE: "the kubelets are restarting a gang that crashed",
        Step.FINAL_STOP: "the job would crash for ever: its budget is used up, or its program fails in the same place",
        Step.DONE: "the ranks make progress after a step of another version",
        Step.FAILED: "the step is one of another version",
    },
    Step.SAVE: {
        **_FIRST,
        Step.DONE: "the ranks made progress again while one was saving",
    },
    Step.STOP: {
        Step.KILL: "every node has stopped its ranks",
        Step.MOVE: "every node with pods that stay has stopped its ranks, and the others move",
        Step.RESUME: "a node refused or did not answer, the controller was late, or the gang changed",
    },
    Step.RESUME: {
        Step.DONE: "the ranks work again, and nothing was ended",
        **_OTHER_METHOD,
    },
    Step.MOVE: {
        Step.KILL: "the pods that moved have their new addresses, or it takes too long",
        Step.RESUME: "a pod that is to move is not deleted",
        **_OTHER_METHOD,
    },
    Step.KILL: {
        Step.PROGRESS: "every pod has restarted in place",
        Step.RETURN: "every pod that stays has restarted in place, and others are new",
        **_OTHER_METHOD,
    },
    Step.SETTLE: {
        Step.PROGRESS: "the kubelets restarted every pod",
        Step.FINAL_STOP: "the program failed in the same place, and its kubelets would restart it for ever",
        Step.STOP: "some pods did not restart with the others",
        **_OTHER_METHOD,
    },
    Step.SUSPEND: {
        Step.TERMINATE: "the job is suspended by us",
        Step.ABANDON: "the API server refuses to suspend the job",
        Step.FAILED: "the job is gone or over, or another client suspended it",
    },
    Step.TERMINATE: {
        Step.GONE: "every pod is marked for deletion",
        Step.RELEASE: "another client resumed the job",
        Step.ABANDON: "the job's own controller deletes nothing",
    },
    Step.DELETE: {
        Step.GONE: "every old pod is marked for deletion",
        Step.FAILED: "the job is gone or over, or the API server refuses to delete its pods",
    },
    Step.GONE: {
        **_NEW_PODS,
        Step.TERMINATE: "the job's controller created a pod late",
        Step.STUCK: "a pod is left after its grace period",
    },
    Step.STUCK: {
        Step.RETURN: "the old pods are gone or proven to compute no more, and the kind creates new ones by itself",
        Step.PAUSE: "the same, and the policy wants a pause",
        Step.RELEASE: "the old pods are gone, or proven to compute no more",
    },
    Step.PAUSE: {Step.RELEASE: "the pause is over"},
    Step.RELEASE: {
        Step.RETURN: "the job is resumed",
        Step.FAILED: "the job is gone",
    },
    Step.RETURN: {
        Step.FINAL_STOP: "the program failed in the same place, and its kubelets would restart it for ever",
        Step.PROGRESS: "as many new pods run as there were",
        Step.RETURN: "it takes long, which is reported once",
        Step.SUSPEND: "a new pod waits on a bad node, and the job has a switch: replace all pods elsewhere",
        Step.DELETE: "a new pod waits on a bad node, and the job has no switch: replace all pods elsewhere",
        Step.FAILED: "the job is gone or over",
    },
    Step.ABANDON: {Step.FAILED: "the job is resumed as it was, or was never suspended"},
    Step.FINAL_STOP: {Step.FAILED: "the job is suspended for good, or cannot be"},
    Step.PROGRESS: {
        Step.DONE: "the ranks make progress",
        Step.FINAL_STOP: "the program failed in the same place, and its kubelets would restart it for ever",
        **_OTHER_METHOD,
    },
}
"""From None: no restart is in progress, or another version wrote the step. DONE and FAILED are ends.

`RestartContext.word_of` admits nothing else.
"""


def _seconds(value: float) -> str:
    return f"{value:.6f}"


def _flag(value: bool) -> str:
    return "1" if value else ""


@dataclass(frozen=True, slots=True)
class RestartDetail:
    """State of one restart attempt between passes; written as text, by key, into `status.action.detail`."""

    pods: int = 0
    """Number of pods before the restart; 0 if unknown."""
    before_s: float | None = None
    """Unix seconds: pods created from then on belong to the next start; None: after all present ones."""
    restarts: str = ""
    """Restart counts before the kill (`machine.baseline`)."""
    grace_s: float = 30.0
    """Longest grace period of its pods, in seconds."""
    pause_s: float = 0.0
    """Pause in seconds that the policy requires before the job is resumed."""
    elsewhere: str = ""
    """Node that the new pods should avoid; empty for none."""
    version: int = 0
    """Volcano's count of restarts before ours."""
    why: str = ""
    """Reason why the stop was undone, or what the API server refused."""
    returned_s: float = 0.0
    """Unix seconds at which all pods were running again."""
    crashed_s: float = 0.0
    """Unix seconds of the crash after which the kubelets restart the gang."""
    renewed: int = 0
    """Number of times that the order to kill was renewed."""
    is_slow: bool = False
    """True once it was reported that the new pods take long."""
    moved: str = ""
    """Uids of pods that move while the others restart in place, separated by spaces."""
    services: str = ""
    """Names of Services that published the addresses of the moved pods."""
    run_s: float = 0.0
    """Unix seconds at which the newest pod of the ended run was created."""
    refused_s: float = 0.0
    """Unix seconds since which the API server refuses a call; of the present step if that began before."""

    @property
    def moved_uids(self) -> frozenset[str]:
        """The uids in `moved` as a set."""
        return frozenset(self.moved.split())

    @classmethod
    def read(cls, words: Mapping[str, str]) -> RestartDetail:
        """The detail of an action; keys of other versions are ignored."""
        values = {name: FORMS[name] for name in cls.__dataclass_fields__}
        return cls(
            **{
                name: form.read(words[form.key])
                for name, form in values.items()
                if form.key in words
            }
        )

    def words(self) -> dict[str, str]:
        """The values that differ from the defaults, as text."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {
            FORMS[name].key: FORMS[name].write(value)[:_MOST_TEXT]
            for name, value in found.items()
            if value != defaults[name]
        }


@dataclass(frozen=True, slots=True)
class Form:
    """Text form of one field: its key, and the conversions between text and value."""

    key: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _whole(text: str) -> int:
    return int(float(text))


_MOST_TEXT = 1024
FORMS: Mapping[str, Form] = {
    "pods": Form("pods", _whole, str),
    "before_s": Form("before", float, _seconds),
    "restarts": Form("restarts", str, str),
    "grace_s": Form("grace", float, "{:g}".format),
    "pause_s": Form("pause", float, "{:g}".format),
    "elsewhere": Form("elsewhere", str, str),
    "version": Form("version", _whole, str),
    "why": Form("why", str, str),
    "returned_s": Form("returned", float, _seconds),
    "crashed_s": Form("crashed", float, _seconds),
    "renewed": Form("renewed", _whole, str),
    "is_slow": Form("slow", bool, _flag),
    "moved": Form("moved", str, str),
    "services": Form("services", str, str),
    "run_s": Form("run", float, _seconds),
    "refused_s": Form("refused", float, _seconds),
}
"""Keys and texts are read by controllers of other versions and must not change."""
