"""When a node that was cordoned is back at work by itself: never without evidence, and later with each repeat."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.fault_policy import InspectionAction, NodeActions
from kcover_ebpf.api.fault_report import ReportedDeviceFault
from kcover_ebpf.api.node_health import NodeHealth, PartHealth, ReceivedHealth, health_of, object_of
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.health import Result
from kcover_ebpf.recovery.nodes.node_health import (
    CORDONED_FOR,
    OFFENCES,
    FailedCheck,
    NotedCordon,
    counted,
    inspected,
    mtbf_s,
    noted,
    noted_cordon,
    noted_more,
    offences,
    rounds_needed,
    why_cordoned,
)
from kcover_ebpf.recovery.nodes.node_plan import (
    CORDONED,
    NodeView,
    inspection_condition,
    is_news,
    view_of,
    why_not_lifted,
)

NOW_S = 1_800_000_000.0
GPU, CHECK = "0000:5d:00.0", "plugin/p"
P, U, W, F = Result.PASS, Result.UNKNOWN, Result.WARN, Result.FAIL
DAY_S = 86400.0
POLICY = NodeActions()
ALL = NodeActions(inspection=InspectionAction.ALL)


def part(
    name: str,
    result: Result,
    rounds: int = 5,
    failed_s: float | None = None,
    devices: tuple[str, ...] = (),
) -> PartHealth:
    kind, since_s = None if name == CHECK else "gpu", NOW_S - 300
    broken = ("it is broken",)
    return PartHealth(name, result, since_s, rounds, kind, broken, None, devices, failed_s)


def seen(
    *,
    result: Result = P,
    gpu_result: Result = P,
    rounds: int = 3,
    clean_s: float | None = NOW_S - 300,
    gpu_failed_s: float | None = None,
    boot: str = "a",
    written_s: float = NOW_S,
    checks: bool = True,
    devices: bool = True,
) -> ReceivedHealth:
    health = NodeHealth(
        node="n",
        time_s=NOW_S,
        expires_after_s=1950,
        boot_id=boot,
        result=result,
        since_s=NOW_S - 300,
        clean_rounds=rounds,
        clean_since_s=clean_s,
        checks=(part(CHECK, result),) if checks else (),
        devices=(part(GPU, gpu_result, failed_s=gpu_failed_s),) if devices else (),
    )
    return ReceivedHealth(health, written_s)


FOR_CHECK = NotedCordon(NOW_S - 1000, checks=(CHECK,), boot_id="a")
FOR_GPU = NotedCordon(NOW_S - 1000, devices=(GPU,), boot_id="a")
UNINSPECTED = replace(FOR_GPU, uninspected=(GPU,))
CONFIRMED = NOW_S - 900
CASES = {
    "a check passes again": (FOR_CHECK, seen(), ""),
    "or only warns": (FOR_CHECK, seen(result=W), ""),
    "too few rounds": (FOR_CHECK, seen(rounds=2), "2 of 3 clean inspections"),
    "no clean round": (FOR_CHECK, seen(rounds=0, clean_s=None), "no clean inspection since"),
    "clean before it was cordoned": (
        FOR_CHECK,
        seen(rounds=99, clean_s=NOW_S - 1001),
        "no clean inspection since",
    ),
    "what failed is unknown now": (FOR_CHECK, seen(result=U), "plugin/p: unknown"),
    "what failed is not run now": (FOR_CHECK, seen(checks=False), "plugin/p is not run any more"),
    "the agent is silent": (FOR_CHECK, seen(written_s=NOW_S - 1951), "its health is unknown"),
    "our clock is wrong": (FOR_CHECK, seen(written_s=NOW_S + 1951), "its health is unknown"),
    "there is no agent": (FOR_CHECK, None, "its health is unknown"),
    "nothing is noted": (None, seen(), "does not record why it was cordoned"),
    "a fault that no inspection showed": (FOR_GPU, seen(), "no inspection showed the fault"),
    "a fault that one showed": (FOR_GPU, seen(gpu_failed_s=CONFIRMED), ""),
    "one that showed another fault, before": (
        FOR_GPU,
        seen(gpu_failed_s=NOW_S - 1200),
        "no inspection showed the fault",
    ),
    "a device that still fails": (FOR_GPU, seen(gpu_result=F, gpu_failed_s=CONFIRMED), f"{GPU}: fail"),
    "a reboot, and one clean round": (FOR_GPU, seen(rounds=1, boot="b"), ""),
    "a reboot, and none": (FOR_GPU, seen(rounds=0, clean_s=None, boot="b"), "no clean inspection"),
    "a reboot after which the GPU is gone": (FOR_GPU, seen(gpu_result=U, boot="b"), f"{GPU}: unknown"),
    "a reboot after which it is not seen": (
        FOR_GPU, seen(devices=False, boot="b"), "no inspection has seen it since the reboot",
    ),
    "a reboot for what is not inspected": (UNINSPECTED, seen(devices=False, boot="b"), ""),
    "and for what is inspected by now": (UNINSPECTED, seen(gpu_result=U, boot="b"), f"{GPU}: unknown"),
    "no reboot for what is not inspected": (UNINSPECTED, seen(devices=False), "reboot the node"),
    "a boot that was not noted": (replace(FOR_GPU, boot_id=""), seen(boot="b"), "reboot the node"),
    "a second offence": (replace(FOR_CHECK, offences=2), seen(rounds=5), "5 of 6"),
    "a second offence, served": (replace(FOR_CHECK, offences=2), seen(rounds=6), ""),
    "a third, after a reboot": (replace(FOR_GPU, offences=3), seen(boot="b"), "3 of 4"),
}  # fmt: skip


@pytest.mark.parametrize(("cordon", "health", "why"), CASES.values(), ids=CASES)
def test_why_cordoned__it_is_uncordoned(
    cordon: NotedCordon | None, health: ReceivedHealth | None, why: str
) -> None:
    found = why_cordoned(cordon, health, NOW_S, POLICY)
    assert found == "" if not why else why in found


def test_why_cordoned__a_policy_leaves_it_to_a_person() -> None:
    assert why_cordoned(FOR_CHECK, seen(), NOW_S, NodeActions(clean_rounds=0))
    assert why_cordoned(FOR_CHECK, seen(rounds=9), NOW_S, NodeActions(clean_rounds=10))


RESULTS = st.sampled_from(Result)
TIMES = st.none() | st.floats(NOW_S - 5000, NOW_S)


@given(
    st.builds(
        NotedCordon,
        since_s=st.floats(NOW_S - 4000, NOW_S),
        checks=st.sampled_from(((), (CHECK,))),
        devices=st.sampled_from(((GPU,), ())),
        boot_id=st.sampled_from(("a", "b", "")),
        offences=st.integers(1, 9),
    ),
    st.builds(
        seen,
        result=RESULTS,
        gpu_result=RESULTS,
        rounds=st.integers(0, 300),
        clean_s=TIMES,
        gpu_failed_s=TIMES,
        written_s=st.floats(NOW_S - 4000, NOW_S + 10),
    ),
    st.integers(0, 10),
)
def test_why_cordoned__never_without_clean_rounds_since_and_never_on_old_or_unknown_news(
    cordon: NotedCordon, health: ReceivedHealth, rounds: int
) -> None:
    policy = NodeActions(clean_rounds=rounds)
    if why_cordoned(cordon, health, NOW_S, policy):
        return
    assert rounds > 0
    assert NOW_S - health.written_s <= health.health.expires_after_s
    assert health.health.clean_rounds >= rounds_needed(cordon, "a", policy) >= 1
    clean_s = health.health.clean_since_s
    assert clean_s is not None
    assert health.at(clean_s) > cordon.since_s
    results = {x.name: x.result for x in (*health.health.checks, *health.health.devices)}
    assert {results[name] for name in (*cordon.checks, *cordon.devices)} <= {P, W}


@pytest.mark.parametrize("count", ["9" * 5000, "-3", "1.5", "", "many"])
def test_offences__a_count_that_makes_no_sense_is_none(count: str) -> None:
    note = {OFFENCES: f"{count} 2027-01-15T08:00:00Z"}
    now_s = rfc3339.from_text("2027-01-15T09:00:00Z")
    assert offences(note, now_s) == 0
    assert counted(note, now_s).startswith("1 ")


@given(st.integers(1, 6), st.integers(1, 20))
def test_rounds_needed__each_repeat_doubles_what_is_needed(offences: int, rounds: int) -> None:
    policy = NodeActions(clean_rounds=rounds)
    once, twice = (NotedCordon(0.0, ("x",), offences=number) for number in (offences, offences + 1))
    assert rounds_needed(twice, "a", policy) == 2 * rounds_needed(once, "a", policy)


def test_counted__a_node_that_flaps_is_out_for_longer_each_time() -> None:
    """Fails for two rounds, passes for as long as it takes: the times at work stay, those out double."""
    annotations: dict[str, str] = {}
    now_s, out = NOW_S, []
    for _ in range(5):
        annotations[OFFENCES] = counted(annotations, now_s)
        cordon = noted_cordon('{"checks": ["plugin/p"]}', now_s, annotations, now_s)
        assert cordon is not None
        needed = rounds_needed(cordon, "a", POLICY)
        out.append(needed)
        now_s += 600.0 * (needed + 2)
    assert out == [3, 6, 12, 24, 48]
    later_s = now_s + 31 * DAY_S
    assert counted(annotations, later_s).startswith("1 "), "forgotten after a month"


def test_noted_cordon__what_is_noted_is_read_again() -> None:
    health = seen(result=F, gpu_result=F)
    faults = inspected(health, NOW_S, NOW_S, ALL)
    note = noted(faults, "boot", health)
    found = noted_cordon(note, 5.0, {OFFENCES: f"2 {rfc3339.to_text(NOW_S)}"}, NOW_S)
    assert found == NotedCordon(5.0, (CHECK,), (GPU,), "boot", 2)
    for broken in (None, "", "[]", "{", '{"checks": 5}', "{}", '"x"'):
        assert noted_cordon(broken, 5.0, {}, NOW_S) is None
    assert noted_cordon(note, None, {}, NOW_S) is None


SWITCH = ReportedDeviceFault("0000:c3:00.0", "sxid_12028", "fatal", unfit=True)


def test_noted__a_device_that_inspections_do_not_list_is_noted_as_such() -> None:
    xid = replace(SWITCH, device=GPU)
    found = noted_cordon(noted((xid, SWITCH), "a", seen()), 5.0, {}, NOW_S)
    assert found == NotedCordon(5.0, (), (GPU, SWITCH.device), "a", 1, (SWITCH.device,))
    blind = noted_cordon(noted((xid, SWITCH), "a", None), 5.0, {}, NOW_S)
    assert blind is not None
    assert blind.uninspected == (), "it is not known what inspections list"
    more = noted_cordon(noted_more(FOR_GPU, (SWITCH,), "b", seen()), 5.0, {}, NOW_S)
    assert more == replace(found, boot_id="b")
    kept = noted_cordon(noted_more(UNINSPECTED, (), "b", seen()), 5.0, {}, NOW_S)
    assert kept is not None
    assert kept.uninspected == (GPU,)


def test_inspected__only_the_policy_lets_a_failed_inspection_cordon_a_node() -> None:
    both = seen(result=F, gpu_result=F)
    only = seen(result=F)
    devices = NodeActions(inspection=InspectionAction.DEVICES)
    assert inspected(both, NOW_S, NOW_S, POLICY) == ()
    unfit = ReportedDeviceFault(GPU, "inspection", "it is broken", unfit=True, age_s=300.0)
    assert inspected(both, NOW_S, NOW_S, devices) == (unfit,)
    assert inspected(only, NOW_S, NOW_S, devices) == ()
    assert inspected(only, NOW_S, NOW_S, ALL) == (FailedCheck(CHECK, "it is broken", 300.0),)
    assert inspected(None, NOW_S, NOW_S, ALL) == ()
    assert inspected(seen(result=F, written_s=NOW_S - 1951), NOW_S, NOW_S, ALL) == ()


def test_inspected__one_bad_moment_cordons_no_node() -> None:
    health = seen(result=F)
    once = replace(health.health, checks=(part(CHECK, F, rounds=1),))
    assert inspected(replace(health, health=once), NOW_S, NOW_S, ALL) == ()


@pytest.mark.parametrize(
    ("devices", "rounds", "is_named"),
    [((GPU,), 5, False), ((), 5, True), ((GPU, "0000:5e:00.0"), 5, True), ((GPU,), 1, True)],
    ids=[
        "its devices are named instead",
        "more failed than devices, or an older agent does not say",
        "a device that explains it works by now",
        "a device that explains it failed once only",
    ],
)
def test_inspected__a_check_is_named_unless_devices_that_explain_it_are(
    devices: tuple[str, ...], rounds: int, *, is_named: bool
) -> None:
    checks = (part(CHECK, F, devices=devices),)
    health = seen()
    failing = replace(health.health, checks=checks, devices=(part(GPU, F, rounds=rounds),))
    found = inspected(replace(health, health=failing), NOW_S, NOW_S, ALL)
    assert any(isinstance(fault, FailedCheck) for fault in found) == is_named


OURS = {
    CORDONED: rfc3339.to_text(FOR_CHECK.since_s) + " x",
    CORDONED_FOR: '{"checks": ["plugin/p"], "boot": "a"}',
}


def node(annotations: dict[str, str] | None = None, **more: object) -> NodeView:
    return NodeView("n", "u", True, annotations or {}, (), "True", **more)  # type: ignore[arg-type]


def test_received_health__only_what_we_cordoned_is_uncordoned() -> None:
    assert why_not_lifted(node(OURS), seen(), NOW_S, POLICY) == ""
    assert why_not_lifted(node(), seen(), NOW_S, POLICY) == "it is not cordoned for a fault"
    old = {CORDONED: OURS[CORDONED]}
    assert "does not record" in why_not_lifted(node(old), seen(), NOW_S, POLICY)


OTHERS = {
    "KernelDeadlock": ({"type": "KernelDeadlock", "status": "True"}, True),
    "no KernelDeadlock": ({"type": "KernelDeadlock", "status": "False"}, False),
    "a name that means well": ({"type": "AcceleratedHardwareReady", "status": "False"}, True),
    "and is": ({"type": "AcceleratedHardwareReady", "status": "True"}, False),
    "unknown": ({"type": "KernelDeadlock", "status": "Unknown"}, False),
    "our own": ({"type": "KcoverDeviceFault", "status": "True"}, False),
}


@pytest.mark.parametrize(("condition", "holds"), OTHERS.values(), ids=OTHERS)
def test_received_health__what_others_report_holds_it_back(
    condition: dict[str, str], holds: bool
) -> None:
    raw = {"metadata": {"name": "n", "annotations": OURS}, "conditions": [condition]}
    assert bool(why_not_lifted(view_of(raw), seen(), NOW_S, POLICY)) is holds


@pytest.mark.parametrize(
    ("key", "holds"), [("nvidia.com/gpu", False), ("nvidia.com/xid", True), ("dedicated", False)]
)
def test_received_health__taints_of_nvidia_hold_it_back(key: str, holds: bool) -> None:
    raw = {"metadata": {"name": "n", "annotations": OURS}, "spec": {"taints": [{"key": key}]}}
    assert bool(why_not_lifted(view_of(raw), seen(), NOW_S, POLICY)) is holds


def test_received_health__the_condition_says_what_failed_and_is_written_on_change_alone() -> None:
    failed = ("True", "plugin/p: it is broken")
    first = inspection_condition(node(), seen(), NOW_S)
    assert first == ("False", "no check failed")
    assert not is_news(node(), seen(), *first)
    assert inspection_condition(node(), None, NOW_S) is None
    assert inspection_condition(node(), seen(result=F), NOW_S) == failed
    assert inspection_condition(node(inspected=failed), seen(result=F), NOW_S) is None
    passed = inspection_condition(node(inspected=failed), seen(), NOW_S)
    assert passed == ("False", "no check failed")
    gone = inspection_condition(node(inspected=failed), seen(written_s=0.0), NOW_S)
    assert gone == ("Unknown", "no inspection is reported")


def test_health_of__an_object_is_about_the_node_of_its_name() -> None:
    written = [{"time": "2027-01-15T08:00:00Z"}, {"time": "nonsense"}, {}]
    raw = object_of(seen().health)
    raw["metadata"]["managedFields"] = written
    found = health_of(raw)
    assert found.health == seen().health
    assert found.written_s == NOW_S
    raw["metadata"]["name"] = "other"
    with pytest.raises(ObjectError, match="it is about node 'n'"):
        health_of(raw)
    with pytest.raises(ObjectError):
        health_of({"metadata": None})
    bare = object_of(seen().health)
    assert health_of(bare).is_stale(NOW_S), "it is not known when it was written"


def test_mtbf_s__is_the_mean_of_what_lies_between_cordons() -> None:
    annotations: dict[str, str] = {}
    for day in (0, 4, 6):
        now_s = NOW_S + day * DAY_S
        assert mtbf_s(annotations, now_s) == (None if day < 6 else 4 * DAY_S)
        annotations[OFFENCES] = counted(annotations, now_s)
    assert mtbf_s(annotations, now_s) == 3 * DAY_S
    assert mtbf_s(annotations, now_s + 40 * DAY_S) is None, "forgotten after a month"
    assert mtbf_s({OFFENCES: f"2 {rfc3339.to_text(now_s)}"}, now_s) is None, "of an older version"


def test_offences__what_cannot_be_read_counts_as_none() -> None:
    now = rfc3339.to_text(NOW_S)
    for text in ("", "x", "3", "3 x", f"x {now}", f"3 {now} x", f"3 {now} {rfc3339.to_text(NOW_S + 9)}"):  # fmt: skip
        assert offences({OFFENCES: text}, NOW_S) == 0
    assert offences({OFFENCES: f"3 {now}"}, NOW_S) == 3
    assert offences({OFFENCES: f"3 {now} {now}"}, NOW_S) == 3


@given(st.text(max_size=60))
def test_offences__any_text_is_read(text: str) -> None:
    assert offences({OFFENCES: text}, NOW_S) >= 0
    assert mtbf_s({OFFENCES: text}, NOW_S) is None or text
