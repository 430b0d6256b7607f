"""The calls of a restart step, and the notes on the Incident that must be written before them."""

from __future__ import annotations

from kcover_ebpf.api.incident import Incident
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.avoidance import NodeAvoidance
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.context_builder import GangMemo
from kcover_ebpf.controller.deletions import Deletions
from kcover_ebpf.errors import ApiError
from kcover_ebpf.recovery.restart import refusals
from kcover_ebpf.recovery.restart.context import Call
from kcover_ebpf.recovery.restart.machine import RestartContext, Transition
from kcover_ebpf.tunables.controller import CALL_AGAIN_S


class StepCalls:
    """Thread-safe as long as no two threads work on the same gang."""

    def __init__(self, cache: ObjectCache, writer: ApiWriter, deletions: Deletions) -> None:
        self._store, self._writer, self._deletions = cache, writer, deletions
        self._avoidance = NodeAvoidance(cache, writer)

    def make(
        self,
        live_incident: Incident,
        context: RestartContext,
        transition: Transition,
        memo: GangMemo,
    ) -> tuple[Incident, Transition | None]:
        """Make the calls of a transition; raises `ApiError` if the server did not answer, or another client was first.

        Returns the incident, and what follows: None to run the step again at once, because a call was made.
        """
        try:
            if transition.calls and context.status.phase.is_acting:
                live_incident = self._deletions.guard(live_incident, wanted=True)
                live_incident = self._avoidance.begin(live_incident, context, context.policy)
            is_made = self._perform(live_incident, transition.calls, memo)
        except ApiError as error:
            if not error.is_refusal:
                raise
            return live_incident, refusals.after(context, str(error))
        return live_incident, None if is_made else transition

    def _perform(self, live_incident: Incident, calls: tuple[Call, ...], memo: GangMemo) -> bool:
        """Make the calls that were not just made; True if there were any."""
        since_s, is_made = self._store.wall() - CALL_AGAIN_S, False
        memo.called = {call: at_s for call, at_s in memo.called.items() if at_s > since_s}
        for call in calls:
            name = repr(call)
            if name in memo.called:
                continue
            # the call changes the job, or a refusal shows that it has changed
            memo.found = None
            try:
                mark = f"{live_incident.namespace}/{live_incident.name}"
                self._writer.perform(live_incident.namespace, call, mark)
            finally:
                # it may have taken seconds, and the cached pods are from before
                memo.called[name] = self._store.wall()
            is_made = True
        return is_made
