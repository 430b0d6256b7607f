"""Inspects this node on a schedule: one process per round; results are kept, published and counted.

A check that hangs in the kernel is abandoned and not rerun until its process exits, so a dead driver costs one
process, not one per round. A check that failed before it hung counts as failed until then.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kcover_ebpf.agent.node_health import health_memory, left_behind
from kcover_ebpf.agent.node_health.health_memory import Round
from kcover_ebpf.agent.node_health.left_behind import LeftBehind
from kcover_ebpf.agent.reports.report_sender import MANAGER
from kcover_ebpf.agent.state_file import write_json
from kcover_ebpf.api.codec import decode
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.node_health import HEALTHS, NodeHealth, PartHealth, object_of
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.confined import helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.host import procfs
from kcover_ebpf.inspection.result import PartResult
from kcover_ebpf.inspection.round import RoundAnswer, RoundOptions, environment
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.tunables.agent import (
    FIRST_ROUND_S,
    INSPECTION_NICENESS,
    ROUND_AGAIN_S,
    ROUND_DEADLINE_S,
    ROUNDS_MISSED,
)
from kcover_ebpf.tunables.host import HELPER_REAP_S

_ANSWER_BYTES = 8 << 20
"""Longest output of one round: a hundred or more devices and checks with some lines each."""
_VOLUME = re.compile(r"/pods/(?P<uid>[0-9a-f-]{1,64})/(?:volumes/[^/ ]+~csi|volume-subpaths)/")
"""A volume of pods: KUBELET/pods/UID/volumes/kubernetes.io~csi/VOLUME/mount (kubelet, pkg/volume/csi; VOLUME: the
PersistentVolume). The folder names the pod by its uid; the claim is in the pod's own object, which an inspection does
not read."""


@dataclass(frozen=True, slots=True)
class InspectorOptions:
    """Settings of the inspection, chosen by the operator."""

    node: str
    interval_s: float
    """Seconds from the end of a round to the start of the next."""
    state_file: Path
    """File in which results are kept, so that "since" survives the agent."""
    wanted: RoundOptions


class Inspector:
    """A thread of the agent; `exchange` is called by the loop."""

    def __init__(
        self,
        api: ApiClient,
        options: InspectorOptions,
        on_error: Callable[[str, str, ApiError], None],
        pod_of: Callable[[str], Pod | None] = lambda _: None,
    ) -> None:
        """`on_error`: called with verb, resource and error; `pod_of`: the pod of this node with that uid."""
        self._api, self._options, self._on_error = api, options, on_error
        self._pod_of = pod_of
        self._wake, self._stopping = threading.Event(), False
        self._hurried = False
        self._unfit: tuple[ReportedDeviceFault, ...] = ()
        self._announced: tuple[tuple[str, str, float], ...] = ()
        self._known: frozenset[tuple[str, str]] = frozenset()
        self._left: dict[str, LeftBehind] = {}
        """Check name -> its abandoned process."""
        self.latest_health: NodeHealth | None = _load(options.state_file)
        """Health after the last round, which an earlier agent may have run."""
        self.ended_s: float | None = None
        """Monotonic time at which this agent's last round ended; None before the first."""
        self.cpu_s = 0.0
        """Total CPU seconds used by rounds."""

    def exchange(self, faults: tuple[ReportedDeviceFault, ...]) -> Mapping[str, float]:
        """Take the announced faults; a new one that makes a device unfit triggers a round at once.

        Returns devices that failed an inspection and later passed, with the time (unix seconds) up to which their
        faults are cleared.
        """
        unfit = tuple(fault for fault in faults if fault.unfit)
        known = frozenset((fault.device, fault.fault) for fault in unfit)
        self._unfit, now_s = unfit, time.time()
        self._announced = tuple(
            (fault.device, fault.fault, now_s - (fault.age_s or 0.0))
            for fault in faults
            if fault.fatal or fault.unfit
        )
        if known - self._known:
            self._hurried = True
            self._wake.set()
        self._known = known
        return health_memory.mended(self.latest_health) if self.latest_health is not None else {}

    def close(self) -> None:
        """Ask `run` to return; does not wait for it."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Inspect and publish until `close` is called."""
        interval_s = self._options.interval_s
        due_s = time.monotonic() + random.uniform(0.0, min(FIRST_ROUND_S, interval_s))
        published = True
        while not self._stopping:
            now_s = time.monotonic()
            try:
                if now_s >= due_s:
                    due_s = now_s + interval_s
                    self._inspect()
                    published = False
                    due_s = time.monotonic() + interval_s
                if not published and not self._stopping:
                    published = self._publish()
            except Exception as error:  # noqa: BLE001 - a thread that ends would have the agent restarted
                self._on_error("inspect", "node", ApiError(repr(error)))
            self._wake.wait(max(0.1, min(due_s - time.monotonic(), ROUND_AGAIN_S)))
            self._wake.clear()
            if self._hurried:
                self._hurried = False
                since_s = ROUND_AGAIN_S if self.ended_s is None else time.monotonic() - self.ended_s
                due_s = min(due_s, time.monotonic() + max(ROUND_AGAIN_S - since_s, 0.0))

    def _inspect(self) -> None:
        self._left = {name: left for name, left in self._left.items() if left.is_there()}
        wanted_options = replace(self._options.wanted, left_out=tuple(self._left))
        answer, wrong = self._ask(wanted_options)
        if self._stopping:
            return
        now_s = time.time()
        checks: Sequence[PartResult] = [
            with_pod_named(check.part, self._pod_of) for check in answer.checks
        ]
        devices: Sequence[PartResult] = answer.devices
        if wrong and self.latest_health is not None:
            checks = _unknown(self.latest_health.checks, wrong)
            devices = _unknown(self.latest_health.devices, wrong)
        hanging = tuple(self._left.values())
        for check in answer.checks:
            if left := left_behind.of_check(check, devices, now_s):
                self._left[check.name] = left
        checks = left_behind.with_left_behind(checks, [left.check for left in hanging])
        of_hanging = [device for left in hanging for device in left.devices]
        devices = left_behind.with_left_behind(devices, of_hanging)
        self.cpu_s += answer.cpu_s
        unfit = [f"{fault.device} {fault.fault}: {fault.text}" for fault in self._unfit]
        boot_id = procfs.boot_id()
        done = Round(now_s, boot_id, checks, devices, unfit, self._announced)
        expires_s = int(ROUNDS_MISSED * self._options.interval_s + ROUND_DEADLINE_S)
        health = health_memory.after_round(self._options.node, self.latest_health, done, expires_s)
        _save(self._options.state_file, health)
        self.latest_health, self.ended_s = health, time.monotonic()

    def _ask(self, wanted_options: RoundOptions) -> tuple[RoundAnswer, str]:
        """Run a round: its answer, or why there is none; the other of the two is empty."""
        nothing = RoundAnswer()
        try:
            # it reads no byte that a tenant wrote, and needs the devices
            running = helper.start(
                wanted_options.argv(),
                None,
                session=True,
                grace_s=HELPER_REAP_S,  # its checks have their own sessions, which it ends
                niceness=INSPECTION_NICENESS,
                environment=environment() | {"NODE_NAME": self._options.node},
            )
        except OSError as error:
            return nothing, f"the inspection cannot be started: {error.strerror}"
        end_s = time.monotonic() + ROUND_DEADLINE_S
        out, why = running.output(end_s, _ANSWER_BYTES, stops=lambda: self._stopping)
        if running.exit_code is None or running.exit_code < 0:
            return nothing, f"the inspection did not end within {ROUND_DEADLINE_S:.0f} s"
        if running.exit_code != 0:
            return nothing, f"the inspection failed: {why}"
        try:
            return decode(RoundAnswer, json.loads(out)), ""
        except (ValueError, RecursionError, ObjectError):
            return nothing, "the inspection gave no answer"

    def _publish(self) -> bool:
        if self.latest_health is None:
            return True
        try:
            self._api.apply(
                f"{HEALTHS}/{self.latest_health.node}", object_of(self.latest_health), MANAGER
            )
        except ApiError as error:
            self._on_error("apply", "nodehealths", error)
            return False
        return True


def _unknown(parts: Sequence[PartHealth], reason: str) -> list[PartResult]:
    """Checks of the round before that this round does not mention, as unknown."""
    return [PartResult(part.name, Result.UNKNOWN, (reason,), kind=part.kind) for part in parts]


def _load(file: Path) -> NodeHealth | None:
    try:
        return decode(NodeHealth, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ObjectError):
        return None


def _save(file: Path, health: NodeHealth) -> None:
    """Save the results; a full or broken disk costs only the memory of the past."""
    with contextlib.suppress(OSError):
        write_json(file, health)


def with_pod_named(part: PartResult, pod_of: Callable[[str], Pod | None]) -> PartResult:
    """The part, with pod and claim added to each sentence about a volume; `pod_of`: the pod with that uid."""
    return replace(part, evidence=tuple(_with_pod(text, pod_of) for text in part.evidence))


def _with_pod(text: str, pod_of: Callable[[str], Pod | None]) -> str:
    match = _VOLUME.search(text)
    pod = pod_of(match["uid"]) if match else None
    if pod is None:
        return text
    claims = ", ".join(pod.claims)
    whose = "" if not claims else f", claim {claims}"
    if len(pod.claims) > 1:
        whose = f", one of its claims {claims}"
    return f"{text}; pod {pod.namespace}/{pod.name}{whose}"
