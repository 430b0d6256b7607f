"""Events that ask for a recovery: what one namespace can have the controller ask the API server."""

from __future__ import annotations

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.incident import Incident, JobRef, Phase, RestartMethod, Status
from kcover_ebpf.api.pods import Pod
from kcover_ebpf.controller.cache import ObjectCache
from kcover_ebpf.controller.event_recorder import NEED_RECOVERY
from kcover_ebpf.controller.kcover_events import BadNodes, KcoverEvents
from kcover_ebpf.diagnosis import decisions
from kcover_ebpf.kube.reflector import Change, Event
from kcover_ebpf.recovery.nodes.node_plan import BAD_NODE
from kcover_ebpf.recovery.restart.demand import ANNOTATION
from kcover_ebpf.settings import Act
from kcover_ebpf.tunables.controller import TRIGGER_S, TRIGGERS_OF_ONE
from tests.unit.support.recovery_events import LABELS, FakePods, asks


def test_kcover_events__one_namespace_has_a_share_of_the_requests() -> None:
    now_s = [1_000_000.0]
    server = FakePods()
    store = ObjectCache(lambda _: None, wall=lambda: now_s[0])
    events = KcoverEvents(server, store)  # type: ignore[arg-type]
    for number in range(500):
        events.on_event(asks("evil", f"p{number}", now_s[0]))
    assert len(server.asked) == TRIGGERS_OF_ONE
    events.on_event(asks("victim", "p", now_s[0]))
    assert len(server.asked) == TRIGGERS_OF_ONE + 1
    assert {key.namespace for key in store.triggers} == {"evil", "victim"}
    now_s[0] += TRIGGER_S + 1.0
    events.on_event(asks("evil", "q", now_s[0]))
    assert len(server.asked) == TRIGGERS_OF_ONE + 2
    assert {key.namespace for key in store.triggers} == {"evil"}, "of the others nothing is left"


def test_kcover_events__what_an_event_asks_for_is_announced_and_may_be_acted_on() -> None:
    now_s = 1_000_000.0
    store = ObjectCache(lambda _: None, wall=lambda: now_s)
    KcoverEvents(FakePods(), store).on_event(asks("ns", "p", now_s - 5.0))  # type: ignore[arg-type]
    (trigger,) = store.triggers.values()
    found = trigger.gang_verdict
    assert found.verdict.is_announced
    assert decisions.decide(found.verdict, Act.SHUTDOWN).act is Act.SHUTDOWN


def restart_event(word: str, at_s: float) -> Event:
    event = asks("ns", "p", at_s + 4000.0)
    event.object["metadata"] = {
        "annotations": {NEED_RECOVERY: "true", ANNOTATION: word},
        "creationTimestamp": rfc3339.to_text(at_s),
    }
    event.object["source"] = {"component": "kubectl-kcover"}
    return event


def test_kcover_events__a_request_is_as_old_as_the_api_server_says() -> None:
    now_s = [1_000_000.0]
    store = ObjectCache(lambda _: None, wall=lambda: now_s[0])
    events = KcoverEvents(FakePods(), store)  # type: ignore[arg-type]
    events.on_event(restart_event("InPlace", now_s[0] - TRIGGER_S))
    assert not store.triggers
    events.on_event(restart_event("InPlace", now_s[0] - 5.0))
    ((key, trigger),) = store.triggers.items()
    assert trigger.demand is not None
    assert (trigger.demand.at_s, trigger.demand.method) == (
        now_s[0] - 5.0,
        RestartMethod.IN_PLACE,
    )
    assert store.trigger(key) is trigger
    now_s[0] += TRIGGER_S
    assert store.trigger(key) is None


def test_kcover_events__a_request_for_an_unknown_method_restarts_nothing() -> None:
    store = ObjectCache(lambda _: None, wall=lambda: 1_000_000.0)
    server = FakePods()
    KcoverEvents(server, store).on_event(restart_event("Gently", 999_999.0))  # type: ignore[arg-type]
    assert not store.triggers
    assert not server.asked


def test_kcover_events__a_request_is_spent_once_the_job_is_being_restarted() -> None:
    now_s = 1_000_000.0
    store = ObjectCache(lambda _: None, wall=lambda: now_s)
    events = KcoverEvents(FakePods(), store)  # type: ignore[arg-type]
    events.on_event(restart_event("Any", now_s - 5.0))
    (key,) = store.triggers
    status = Status(Phase.OPEN).enter(Phase.SHUTTING_DOWN, now_s - 1.0, "stopping")
    store.put(Incident("ns", "i", JobRef("PyTorchJob", "j", "u"), LABELS, status=status, uid="i"))
    assert store.trigger(key) is None
    events.on_event(restart_event("Any", now_s - 5.0))
    assert store.trigger(key) is None, "the Event is listed again whenever the watch begins anew"


def test_kcover_events__of_an_event_of_a_megabyte_a_line_is_kept() -> None:
    store, event = ObjectCache(lambda _: None, wall=lambda: 1.0), asks("ns", "p", 1.0)
    event.object.update(
        reason="r" * 1_000_000, message="m" * 1_000_000, source={"component": "c" * 1_000_000}
    )
    KcoverEvents(FakePods(), store).on_event(event)  # type: ignore[arg-type]
    assert len(repr(store.triggers)) < 4096


def complaint(node: str, at_s: float, why: str = "slow") -> Event:
    event = asks("ml", "p", at_s)
    created = rfc3339.to_text(at_s)
    event.object["metadata"] = {"annotations": {BAD_NODE: node}, "creationTimestamp": created}
    event.object["message"] = why
    return event


def reported_of(*events: Event, leads: bool = True) -> list[tuple[dict[str, str], str, str, bool]]:
    """What the Events about nodes say of these; pod p is on node n."""
    store = ObjectCache(lambda _: None, wall=lambda: 1_000_000.0)
    for name in ("n", "other"):
        metadata = {"name": name, "uid": f"uid-{name}"}
        store.on_node(Event(Change.SET, {"metadata": metadata}))
    reported: list[tuple[dict[str, str], str, str, bool]] = []
    bad_nodes = BadNodes(store, lambda *said: reported.append(said), lambda: leads)
    taken = KcoverEvents(FakePods(), store, bad_node=bad_nodes.report)  # type: ignore[arg-type]
    for event in events:
        taken.on_event(event)
    assert not store.triggers, "nothing is restarted"
    return reported


def test_bad_nodes__an_event_about_the_node_says_who_says_what_of_it() -> None:
    ((about, reason, text, is_warning),) = reported_of(complaint("n", 999_990.0, "slow\x1b[2J NIC"))
    assert (about["kind"], about["name"], about["uid"]) == ("Node", "n", "uid-n")
    assert (reason, is_warning) == ("KcoverBadNode", True)
    assert text == "pod ml/p: slow [2J NIC"


def test_bad_nodes__of_a_node_that_is_not_the_pods_own_and_of_long_ago_nothing_is_said() -> None:
    assert reported_of(complaint("other", 999_990.0)) == []
    assert reported_of(complaint("gone", 999_990.0)) == []
    assert reported_of(complaint("n", 1_000_000.0 - TRIGGER_S)) == []
    assert reported_of(complaint("n", 999_990.0), leads=False) == []


def test_bad_nodes__what_is_said_while_no_controller_leads_is_passed_on_by_the_next_one() -> None:
    now_s, leads = 1_000_000.0, False
    store = ObjectCache(lambda _: None, wall=lambda: now_s)
    reported: list[str] = []
    bad_nodes = BadNodes(store, lambda *said: reported.append(said[2]), lambda: leads)
    taken = KcoverEvents(FakePods(), store, bad_node=bad_nodes.report)  # type: ignore[arg-type]
    taken.on_event(complaint("n", 999_990.0, "early"))
    leads, now_s = True, now_s + TRIGGER_S / 2
    taken.on_event(complaint("n", now_s, "late"))
    assert reported == [], "the node is not known yet"
    store.on_node(Event(Change.SET, {"metadata": {"name": "n", "uid": "uid-n"}}))
    bad_nodes.pass_on()
    assert reported == ["pod ml/p: early", "pod ml/p: late"]
    bad_nodes.pass_on()
    assert len(reported) == 2, "each is passed on once"
    leads = False
    taken.on_event(complaint("n", now_s, "in vain"))
    leads, now_s = True, now_s + TRIGGER_S
    bad_nodes.pass_on()
    assert len(reported) == 2, "it is too old"


def test_bad_nodes__what_is_kept_until_a_controller_leads_has_a_bound() -> None:
    leads = False
    store = ObjectCache(lambda _: None, wall=lambda: 1_000_000.0)
    store.on_node(Event(Change.SET, {"metadata": {"name": "n", "uid": "uid-n"}}))
    reported: list[str] = []
    bad_nodes = BadNodes(store, lambda *said: reported.append(said[2]), lambda: leads)
    pod = Pod("ml", "p", "u", "n", "Running", 10.0, None, {}, {}, (), ())
    for number in range(2 * TRIGGERS_OF_ONE):
        bad_nodes.report(pod, "n", str(number))
    leads = True
    bad_nodes.pass_on()
    kept = range(TRIGGERS_OF_ONE, 2 * TRIGGERS_OF_ONE)
    assert [text.rpartition(" ")[2] for text in reported] == list(map(str, kept))


def test_bad_nodes__one_namespace_has_a_share_of_what_is_looked_up() -> None:
    many = [complaint("n", 999_990.0) for _ in range(2 * TRIGGERS_OF_ONE)]
    assert len(reported_of(*many)) == TRIGGERS_OF_ONE
