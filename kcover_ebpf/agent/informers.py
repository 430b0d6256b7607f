"""What the agent hears from the API server: the pods of its node, the policies, the kinds of jobs, the incidents."""

from __future__ import annotations

from collections.abc import Callable

from kcover_ebpf.agent.orders.order_executor import OrderExecutor
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.order import incident_of
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.kube.reflector import Change, Event, Reflector, Transport

_CUSTOM = f"/apis/{API_VERSION}"
_ASKS = frozenset({Phase.OPEN.value, Phase.RECOVERING.value})
"""While a fault is suspected the controller waits to hear that the ranks of other nodes are not stopped, and once a job
is back for progress, which may have been reported before it asked."""


class Informers:
    """Four threads that live as long as the agent."""

    def __init__(
        self,
        transport: Transport,
        node: str,
        registry: PodRegistry,
        executor: OrderExecutor,
        on_error: Callable[[str, str, ApiError], None],
        on_asked: Callable[[str], None],
    ) -> None:
        """`on_error`: verb, resource and what was wrong; `on_asked`: the namespace of a job that is waited for."""
        self._registry, self._executor, self._on_error = registry, executor, on_error
        self._on_asked = on_asked
        self._asked: dict[str, str] = {}
        """By Incident (uid) the phase in which it asked last."""

        def watch(path: str, query: dict[str, str], on_event: Callable[[Event], None]) -> Reflector:
            resource = path.rpartition("/")[2]
            return Reflector(
                transport, path, query, on_event, lambda error: on_error("watch", resource, error)
            )

        self._pods = watch("/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}, self._on_pod)
        self._policies = watch(f"{_CUSTOM}/faultpolicies", {}, registry.on_policy)
        self._kinds = watch(f"{_CUSTOM}/jobkinds", {}, registry.on_kind)
        self._incidents = watch(f"{_CUSTOM}/incidents", {}, self.on_incident)

    def start(self) -> None:
        """Begin to listen."""
        for reflector in self._all:
            reflector.start()

    @property
    def _all(self) -> tuple[Reflector, ...]:
        return self._pods, self._policies, self._kinds, self._incidents

    @property
    def is_alive(self) -> bool:
        """True while all four live. How long they wait says nothing: a quiet watch is silent for minutes."""
        return all(reflector.is_alive for reflector in self._all)

    def has_pods(self) -> bool:
        """True once the pods of this node are known."""
        return self._pods.synced.is_set()

    def _on_pod(self, event: Event) -> None:
        self._registry.on_pod(event)
        self._executor.pods_changed()

    def on_incident(self, event: Event) -> None:
        """Pass an Incident on to who carries out its order, and confirm reports where it asks for them."""
        if event.change is not Change.SET:
            return
        try:
            incident = incident_of(event.object)
        except ObjectError as error:
            self._on_error("read", "incidents", ApiError(str(error)))
            return
        self._executor.hear(incident)
        if incident.phase not in _ASKS:
            self._asked.pop(incident.uid, None)
        elif self._asked.get(incident.uid) != incident.phase:
            self._asked[incident.uid] = incident.phase
            self._on_asked(incident.namespace)
