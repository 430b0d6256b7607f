"""Leader election: one Lease, which one of several replicas holds and renews.

Clocks of replicas are not compared: a Lease has expired when it did not change for its whole duration, as observed
here. Source: client-go's leader election, which does the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from kcover_ebpf.api import rfc3339
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import ApiError, Conflict, NotFound
from kcover_ebpf.kube.client import ApiClient
from kcover_ebpf.tunables.kube import (
    LEASE_DURATION_S,
    LEASE_GIVE_UP_S,
    LEASE_PERIOD_S,
    LEASE_REQUEST_S,
    LEASE_RETRY_S,
)

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Claim:
    """One replica's knowledge of the Lease; times are monotonic seconds. Pure."""

    identity: str
    seen: tuple[str, str] | None = None
    """(holder, renewal time) as written by the holder."""
    seen_s: float = 0.0
    renewed_s: float | None = None
    """When we last renewed the Lease; None unless we hold it."""
    from_s: float = 0.0
    """Time before which this replica does not lead."""

    def observe(self, holder: str, renewed: str, now_s: float) -> None:
        """Take the Lease as it was just read."""
        if (holder, renewed) != self.seen:
            self.seen, self.seen_s = (holder, renewed), now_s
        if holder != self.identity:
            self.renewed_s = None

    def may_take(self, now_s: float) -> bool:
        """True if the Lease is ours, free or expired."""
        if self.seen is None or self.seen[0] in ("", self.identity):
            return True
        return now_s - self.seen_s >= LEASE_DURATION_S

    def leads(self, now_s: float) -> bool:
        """True while it is safe to act as the leader."""
        ours = self.renewed_s is not None and now_s - self.renewed_s < LEASE_GIVE_UP_S
        return ours and now_s >= self.from_s


class LeaderElector:
    """Tries to hold a Lease in its own thread."""

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float],
        pod_uid: str = "",
    ) -> None:
        """`clock`: monotonic seconds; `pod_uid`: of our pod, named `identity`, if we run in one.

        The Lease then belongs to the leader's pod: when all pods are gone, the cluster deletes it.
        """
        self._session, self._clock = client.hurried(LEASE_REQUEST_S), clock
        pod = {"apiVersion": "v1", "kind": "Pod", "name": identity, "uid": pod_uid}
        self._owners = [pod] if pod_uid else []
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._claim = Claim(identity)
        self.seizes = False
        """True: take the Lease from any holder, and lead once the old holder must have given up."""
        self._held: dict[str, Any] | None = None
        """The Lease as we last wrote it: while no one else writes it, it need not be read again."""
        self._stop = threading.Event()
        self.thread: threading.Thread | None = None
        """The thread, for liveness checks; None before `start`."""

    @property
    def leads(self) -> bool:
        """True while this replica may act."""
        return self._claim.leads(self._clock())

    def start(self, on_change: Callable[[bool], None], wall: Callable[[], float]) -> None:
        """Start the thread; `on_change` is called in it when we start or stop leading."""
        self.thread = threading.Thread(
            target=self._run, args=(on_change, wall), name="lease", daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Release the Lease, so that another replica need not wait for it to expire."""
        self._stop.set()
        if self.thread is not None:
            self.thread.join(LEASE_PERIOD_S * 3)
        if not self.leads:
            return
        # the next holder acts at once, and a request of ours may still be about to be sent
        self._claim.renewed_s = None
        try:
            lease = self._session.get(f"{self._collection}/{self._name}")
            if lease.get("spec", {}).get("holderIdentity") == self._claim.identity:
                lease["spec"]["holderIdentity"] = ""
                self._session.replace(f"{self._collection}/{self._name}", lease)
        except ApiError:
            return

    def _run(self, on_change: Callable[[bool], None], wall: Callable[[], float]) -> None:
        led, reported = False, ""
        while not self._stop.is_set():
            wait_s, error_text = LEASE_PERIOD_S, ""
            try:
                self.renew(wall())
            except ApiError as error:
                # `leads` decides by time whether we still lead
                wait_s, error_text = LEASE_RETRY_S, str(error)
            if error_text != reported:
                reported = error_text
                if error_text:
                    _LOG.warning("cannot write lease %s: %s", self._name, error_text)
            if self.leads is not led:
                led = not led
                on_change(led)
            self._stop.wait(wait_s)

    def renew(self, wall_s: float) -> None:
        """Take or renew the Lease if that is possible now; raises `ApiError`.

        A replica whose Lease was overwritten or deleted stops leading until it reacquires it. A Lease owned by a
        pod disappears with the pod, while the process may still run on a partitioned node; so the replica that
        recreates the Lease waits out the old leader's deadline.
        """
        asked_s = self._clock()
        path = f"{self._collection}/{self._name}"
        lease, self._held = self._held, None
        if lease is None:
            try:
                lease = self._session.get(path)
            except NotFound:
                self._claim.renewed_s = None
                self._held = self._session.create(self._collection, self._new(wall_s))
                self._claim.from_s = asked_s + LEASE_GIVE_UP_S if self._owners else asked_s
                self._mine(self._held, asked_s)
                return
            spec = lease.get("spec") or {}
            holder = str(spec.get("holderIdentity") or "")
            self._claim.observe(holder, str(spec.get("renewTime") or ""), asked_s)
            if not self._claim.may_take(asked_s):
                if not self.seizes:
                    return
                self._claim.from_s = asked_s + LEASE_GIVE_UP_S
        lease["metadata"]["ownerReferences"] = self._owners
        lease["spec"] = self._spec(lease.get("spec") or {}, wall_s)
        # refused if another client wrote it since: then read it again
        try:
            self._held = self._session.replace(path, lease)
        except (Conflict, NotFound):
            self._claim.renewed_s = None
            raise
        self._mine(lease, asked_s)

    def _mine(self, lease: dict[str, Any], asked_s: float) -> None:
        self._claim.observe(self._claim.identity, str(lease["spec"]["renewTime"]), asked_s)
        self._claim.renewed_s = asked_s

    def _new(self, wall_s: float) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "ownerReferences": self._owners},
            "spec": self._spec({}, wall_s),
        }

    def _spec(self, before: dict[str, Any], wall_s: float) -> dict[str, Any]:
        mine = before.get("holderIdentity") == self._claim.identity
        now = rfc3339.to_text(wall_s)
        changes = int(before.get("leaseTransitions") or 0) + (0 if mine or not before else 1)
        return {
            "holderIdentity": self._claim.identity,
            "leaseDurationSeconds": int(LEASE_DURATION_S),
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": changes,
        }
