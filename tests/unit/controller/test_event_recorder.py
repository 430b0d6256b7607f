"""Events are written behind what they report: few, bounded, and what is lost is counted."""

from __future__ import annotations

import pytest

from kcover_ebpf.controller import event_recorder
from kcover_ebpf.controller.api_writer import ApiWriter
from kcover_ebpf.controller.event_recorder import EventRecorder, PendingEvent, name_of
from kcover_ebpf.errors import ApiError, Conflict, NotFound
from kcover_ebpf.tunables.controller import EVENT_SETTLE_S
from tests.unit.support.fake_clock import FakeClock

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u1", "namespace": "ns"}
POD = {"apiVersion": "v1", "kind": "Pod", "name": "j-0", "uid": "u2", "namespace": "ns"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_000_000.0)


@pytest.fixture
def reported(clock: FakeClock) -> EventRecorder:
    return EventRecorder(lambda _: None, clock)


def due(reported_recorder: EventRecorder) -> list[PendingEvent]:
    found = []
    while (said := reported_recorder.due()[0]) is not None:
        found.append(said)
    return found


def test_event_recorder__a_restart_is_one_event_for_the_job_and_one_for_the_pod(
    reported: EventRecorder, clock: FakeClock
) -> None:
    for reason in ("Decided", "ShuttingDown", "Recovering"):
        reported.publish("inc", JOB, reason, f"{reason}!", True)
        clock.now_s += 0.2
    reported.publish("inc", POD, "ShuttingDown", "!", True)
    assert reported.due()[0] is None
    clock.now_s += EVENT_SETTLE_S
    job, pod = due(reported)
    assert (job.reason, job.text, job.count, job.is_known) == (
        "Recovering",
        "Recovering!",
        3,
        False,
    )
    assert job.first_s == 1_000_000.0
    assert job.last_s == pytest.approx(1_000_000.4)
    assert (pod.about, pod.count) == (POD, 1)
    assert reported.due() == (None, None), "nothing waits"


def test_event_recorder__a_later_word_changes_the_event_that_is_there(
    reported: EventRecorder, clock: FakeClock
) -> None:
    reported.publish("inc", JOB, "Decided", "a", True)
    clock.now_s += EVENT_SETTLE_S
    first = due(reported)[0]
    clock.now_s += 60.0
    reported.publish("inc", JOB, "Recovered", "b", False)
    clock.now_s += EVENT_SETTLE_S
    again = due(reported)[0]
    assert (again.name, again.count, again.is_known) == (first.name, 2, True)
    assert again.first_s == first.first_s


def test_event_recorder__another_incident_is_another_event(
    reported: EventRecorder, clock: FakeClock
) -> None:
    reported.publish("inc1", JOB, "Decided", "a", True)
    reported.publish("inc2", JOB, "Decided", "b", True)
    clock.now_s += EVENT_SETTLE_S
    assert len({event.name for event in due(reported)}) == 2


def test_name_of__the_name_is_the_same_for_the_next_controller_and_one_that_the_server_takes() -> (
    None
):
    about = JOB | {"name": "x" * 253}
    assert name_of("inc", about) == name_of("inc", dict(about))
    assert len(name_of("inc", about)) <= 253


def test_event_recorder__one_too_many_is_dropped_and_counted(
    reported: EventRecorder, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_recorder, "_MOST_WAITING", 3)
    for number in range(5):
        reported.publish(f"inc{number}", JOB, "Decided", str(number), True)
    clock.now_s += EVENT_SETTLE_S
    assert [event.text for event in due(reported)] == ["2", "3", "4"]
    assert reported.lost_count == 2


def test_event_recorder__what_the_server_refuses_is_counted_and_nothing_waits_at_the_end(
    clock: FakeClock,
) -> None:
    sent: list[str] = []

    def send(event: PendingEvent) -> None:
        sent.append(event.text)
        if event.text == "a":
            raise ApiError("no")

    reported = EventRecorder(send, clock)
    reported.publish("inc1", JOB, "Decided", "a", True)
    reported.publish("inc2", JOB, "Decided", "b", True)
    reported.start()
    reported.close(10.0)
    assert sent == ["a", "b"], "the end waits for no settling"
    assert reported.lost_count == 1


class FakeEventServer:
    """Remembers requests; `fails` are raised first."""

    def __init__(self, *fails: ApiError | None) -> None:
        self.fails, self.asked = list(fails), list[tuple[str, str]]()

    def _ask(self, verb: str, path: str) -> dict[str, object]:
        self.asked.append((verb, path))
        error = self.fails.pop(0) if self.fails else None
        if error is not None:
            raise error
        return {}

    def create(self, path: str, body: dict[str, object]) -> dict[str, object]:
        self.body = body
        return self._ask("create", path)

    def merge_patch(self, path: str, body: dict[str, object]) -> dict[str, object]:
        self.body = body
        return self._ask("patch", path)


def said(is_known: bool) -> PendingEvent:
    return PendingEvent(POD, "e", "R", "t" * 2000, True, 1.0, 2.0, 3, is_known)


PATH = "/api/v1/namespaces/ns/events"


@pytest.mark.parametrize(
    ("is_known", "fails", "expected"),
    [
        (False, [], [("create", PATH)]),
        (True, [], [("patch", f"{PATH}/e")]),
        (True, [NotFound("gone after an hour")], [("patch", f"{PATH}/e"), ("create", PATH)]),
        (False, [Conflict("of the leader before")], [("create", PATH), ("patch", f"{PATH}/e")]),
    ],
)
def test_api_writer__an_event_is_made_once_and_changed_after(
    is_known: bool, fails: list[ApiError], expected: list[tuple[str, str]]
) -> None:
    server = FakeEventServer(*fails)
    ApiWriter(server, lambda *_: None, lambda: True).event(said(is_known))  # type: ignore[arg-type]
    assert server.asked == expected
    assert (server.body["count"], len(str(server.body["message"]))) == (3, 1024)


def test_api_writer__an_event_about_a_pod_asks_for_a_recovery_as_kcover_does() -> None:
    server = FakeEventServer()
    ApiWriter(server, lambda *_: None, lambda: True).event(said(False))  # type: ignore[arg-type]
    metadata = server.body["metadata"]
    assert isinstance(metadata, dict)
    assert metadata["annotations"] == {"kcover.io/need-recovery": "true"}
