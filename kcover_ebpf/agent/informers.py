"""What the agent watches at the API server: pods of its node, policies, job kinds and incidents."""

from __future__ import annotations

from collections.abc import Callable

from kcover_ebpf.agent.orders.order_executor import OrderExecutor
from kcover_ebpf.agent.pod_registry import PodRegistry
from kcover_ebpf.api.fault_report import API_VERSION
from kcover_ebpf.api.incident import Phase
from kcover_ebpf.api.job_kinds import GangId
from kcover_ebpf.api.order import incident_of, past_of
from kcover_ebpf.errors import ApiError, ObjectError
from kcover_ebpf.kube.reflector import Change, Event, Reflector, Transport
from kcover_ebpf.model.silence_summary import SilenceSummary

_CUSTOM = f"/apis/{API_VERSION}"
_ASKS = frozenset({Phase.OPEN.value, Phase.RECOVERING.value})
"""Phases in which the controller waits for reports.

While a fault is suspected, it waits to learn whether the ranks on other nodes are stopped. Once a job is running
again, it waits for progress, which may have been reported before it asked.
"""


class Informers:
    """Four watching threads, which run until the agent ends."""

    def __init__(  # noqa: PLR0913 - one listener each
        self,
        transport: Transport,
        node: str,
        registry: PodRegistry,
        executor: OrderExecutor,
        on_error: Callable[[str, str, ApiError], None],
        on_asked: Callable[[str], None],
        *,
        on_past: Callable[[GangId, SilenceSummary], None],
    ) -> None:
        """`on_error` gets verb, resource and error; `on_asked` the namespace of a job that a client waits for.

        `on_past` gets what the incident of any job says about its silences.
        """
        self._registry, self._executor, self._on_error = registry, executor, on_error
        self._on_asked, self._on_past = on_asked, on_past
        self._asked: dict[str, str] = {}
        """Incident uid -> phase in which it last asked."""

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
        """Start the watching threads."""
        for reflector in self._all:
            reflector.start()

    @property
    def _all(self) -> tuple[Reflector, ...]:
        return self._pods, self._policies, self._kinds, self._incidents

    @property
    def is_alive(self) -> bool:
        """True while all four threads run. A quiet watch is silent for minutes, so waiting is no sign of death."""
        return all(reflector.is_alive for reflector in self._all)

    def has_pods(self) -> bool:
        """True once the pods of this node have been listed."""
        return self._pods.synced.is_set()

    def _on_pod(self, event: Event) -> None:
        self._registry.on_pod(event)
        self._executor.pods_changed()

    def on_incident(self, event: Event) -> None:
        """Hand an Incident to the executor of orders, and confirm reports if it asks for them."""
        if event.change is not Change.SET:
            return
        try:
            incident = incident_of(event.object)
        except ObjectError as error:
            self._on_error("read", "incidents", ApiError(str(error)))
            return
        self._executor.hear(incident)
        if (past := past_of(event.object)) is not None:
            self._on_past(*past)
        if incident.phase not in _ASKS:
            self._asked.pop(incident.uid, None)
        elif self._asked.get(incident.uid) != incident.phase:
            self._asked[incident.uid] = incident.phase
            self._on_asked(incident.namespace)
