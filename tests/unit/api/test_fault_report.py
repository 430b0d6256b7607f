"""Reports and orders: to the objects of the custom resources and back, and what is refused."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kcover_ebpf.api import codec, rfc3339
from kcover_ebpf.api.codec import camel
from kcover_ebpf.api.fault_report import REPORT, FaultReport, PodRef, object_of, report_of
from kcover_ebpf.api.order import Order, Verb, incident_of
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.recorders import RankRecord, RecordedCall, RecordedGroup
from kcover_ebpf.gang.gang_snapshot import ReceivedReport
from kcover_ebpf.ids import Endpoint, Pid
from kcover_ebpf.model.process_state import State
from kcover_ebpf.model.roles import Role
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind

CRDS = Path(__file__).resolve().parents[3] / "charts/kcover-ebpf/crds"
moments = st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1_000_000)
since = st.floats(-9e10, 9e10)
"""Moments that are written as ages: with the latest of `moments`, an age is up to 1e11, as numbers may be."""
labels = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)


DEEP = (RankRecord, RecordedGroup, RecordedCall)
"""Lists of lists of these: one of each shows as much as two, and is built eight times as fast."""


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field, built from its type: a new field needs no new strategy."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if type(None) in inner:
        return st.none() | any_of(next(item for item in inner if item is not type(None)))
    if hint is Endpoint:
        return st.builds(Endpoint, st.ip_addresses().map(str), st.integers(0, 65535))
    if origin is tuple:
        most = 1 if inner[0] in DEEP else 2
        return st.lists(any_of(inner[0]), max_size=most).map(tuple)
    if origin is not None:
        return labels
    if dataclasses.is_dataclass(hint):
        return objects(hint)
    if hint is float:
        return st.floats(-1e11, 1e11)
    if hint in (int, Pid):
        return st.integers(-(1 << 63), (1 << 64) - 1)
    return st.from_type(hint)


def objects(kind: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        kind,
        **{
            field.name: values_of(metadata, hint)
            for _, field, metadata, hint in REPORT._fields(kind)
        },
    )


def values_of(metadata: Mapping[str, Any], hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field as its codec reads them."""
    if metadata.get("time"):
        return moments
    return since if metadata.get("ago") else any_of(hint)


reports = objects(FaultReport)
# a report has a hundred fields: to shrink one takes minutes and shows little
QUICK = settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))


@cache
def schema(name: str, *path: str) -> dict[str, Any]:
    crd = yaml.safe_load((CRDS / name).read_text())
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for text in path:
        found = found["properties"][text]
    return found


def faults(value: Any, rule: dict[str, Any], where: str) -> list[str]:
    """What the API server would prune or refuse: unknown keys, wrong types, values outside an enum."""
    kinds: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "number": (int, float)}
    if rule["type"] == "object":
        if "additionalProperties" in rule:
            return []
        known = rule["properties"]
        found = [f"{where}.{key}: unknown" for key in value if key not in known]
        found += [f"{where}.{key}: missing" for key in rule.get("required", ()) if key not in value]
        for key in value.keys() & known.keys():
            found += faults(value[key], known[key], f"{where}.{key}")
        return found
    if rule["type"] == "array":
        return [fault for item in value for fault in faults(item, rule["items"], f"{where}[]")]
    wrong = not isinstance(value, kinds[rule["type"]])
    outside = "enum" in rule and value not in rule["enum"]
    return [f"{where}: {value!r}"] if wrong or outside else []


@QUICK
@given(reports)
def test_report_of__a_report_survives_the_way_there_and_back(report: FaultReport) -> None:
    there = object_of(report, "ns", "name")
    back = report_of(there)
    assert replace(back, verdict=None) == replace(report, verdict=None)
    assert object_of(back, "ns", "name") == there


def test_object_of__times_of_a_verdict_are_relative_to_that_of_the_report_as_json_alone() -> None:
    verdict = Verdict(
        VerdictKind.HUNG, Cause.STOPPED, since_s=88.0, deadline_s=1900.0, acts_at_s=112.5
    )
    report = FaultReport("n", 100.0, 1, verdict=verdict)
    made = object_of(report, "ns", "name")
    said = made["spec"]["verdict"]
    assert (said["ageS"], said["deadlineS"], said["actsInS"]) == (12.0, 1800.0, 12.5)
    assert report_of(made) == report
    # by the clock of a receiver who got it 2 s after it was made
    seen_verdict = ReceivedReport(report, 5002.0, delay_s=2.0).verdict(5030.0)
    assert seen_verdict is not None
    assert (seen_verdict.since_s, seen_verdict.acts_at_s) == (4988.0, 5012.5)


@QUICK
@given(reports)
def test_object_of__whatever_we_report_the_schema_knows(report: FaultReport) -> None:
    spec = object_of(report, "ns", "name")["spec"]
    assert faults(spec, schema("faultreports.yaml", "spec"), "spec") == []


def test_fault_report__the_check_sees_what_the_schema_does_not_know() -> None:
    rule = schema("faultreports.yaml", "spec")
    spec = {"node": "n", "time": "t", "sequence": "x", "colour": 1, "acks": [{"order": "1"}]}
    assert sorted(faults(spec, rule, "s")) == [
        "s.acks[].result: missing",
        "s.acks[].verb: missing",
        "s.colour: unknown",
        "s.sequence: 'x'",
    ]


@given(objects(Order))
def test_order__whatever_is_ordered_the_schema_knows_and_an_agent_reads(
    order: Order,
) -> None:
    raw = codec.encode(order)
    assert (
        faults(raw, schema("incidents.yaml", "status", "order"), "order") == []
        or not order.selector
    )
    if order.selector:
        assert incident_of(incident(raw)).order == order


def incident(order: dict[str, Any] | None) -> dict[str, Any]:
    return {"metadata": {"name": "i"}, "status": {"phase": "ShuttingDown", "order": order}}


def test_fault_report__a_report_is_owned_by_its_pods() -> None:
    report = FaultReport(node="n", time_s=1.0, sequence=1)
    made = object_of(report, "ns", "name", (PodRef("p", "u"),))
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    ]


BASE = {"node": "n", "time": "2026-01-02T03:04:05Z", "sequence": 1}
WRONG: dict[str, tuple[object, str]] = {
    "no spec": (None, "spec: expected an object"),
    "no node": ({"time": BASE["time"], "sequence": 1}, "spec.node: missing"),
    "a time without a zone": ({**BASE, "time": "2026-01-02T03:04:05"}, "spec.time: "),
    "a number as text": ({**BASE, "sequence": "1"}, "spec.sequence: expected a whole number"),
    "true as a number": ({**BASE, "sequence": True}, "spec.sequence: expected a whole number"),
    "a verdict that is no word": (
        {**BASE, "verdict": {"verdict": 1, "cause": "stopped"}},
        "spec.verdict.verdict: expected one of HUNG",
    ),
    "a rank without a pid": (
        {**BASE, "ranks": [{"podUID": "u", "role": "rank", "state": "moving"}]},
        "spec.ranks[0].pid: missing",
    ),
    "text in place of a list": ({**BASE, "ranks": "abc"}, "spec.ranks: expected a list"),
    "labels that are no text": (
        {**BASE, "job": {"name": "j", "selector": {"a": 1}}},
        "spec.job.selector: expected an object of strings",
    ),
}


@pytest.mark.parametrize(("spec", "said"), WRONG.values(), ids=WRONG.keys())
def test_report_of__a_wrong_report_names_the_place(spec: object, said: str) -> None:
    with pytest.raises(ObjectError, match=r"^FaultReport r: ") as caught:
        report_of({"metadata": {"name": "r"}, "spec": spec})
    assert said in str(caught.value)


def test_report_of__a_report_of_a_newer_agent_is_read() -> None:
    assert report_of({"spec": {**BASE, "mood": "good"}}).node == "n"


def test_report__words_of_a_newer_agent_cost_no_more_than_themselves() -> None:
    said = {"kind": "event", "text": "known"}
    verdict = {
        "verdict": "HUNG",
        "cause": "cosmic_ray",
        "evidence": [{"kind": "oracle", "text": "new"}, said],
    }
    acks = [{"order": "1", "verb": "Dance", "result": "Done"}]
    found = report_of({"spec": {**BASE, "verdict": verdict, "acks": acks}})
    assert found.verdict is not None
    assert (found.verdict.kind, found.verdict.cause) == (VerdictKind.HUNG, Cause.UNKNOWN)
    assert [evidence.text for evidence in found.verdict.evidence] == ["known"]
    assert found.acks == ()
    sad = {"verdict": "SAD", "cause": "stopped"}
    unknown = report_of({"spec": {**BASE, "verdict": sad}}).verdict
    assert unknown is not None
    assert not unknown.opens_incident


def test_report__a_rank_in_words_of_a_newer_agent_is_read_as_one_of_unknown_state() -> None:
    """And of what an older one does not report nothing is assumed."""
    plain = {"podUID": "u", "pid": 7}
    new = {**plain, "role": "conductor", "state": "humming", "effort": "song", "tune": 1}
    old = {
        **plain,
        "role": "rank",
        "state": "moving",
        "sockets": [SOCKET, {**SOCKET, "local": "?"}],
    }
    newer, older = report_of({"spec": {**BASE, "ranks": [new, old]}}).ranks
    assert (newer.role, newer.state) == (Role.HELPER, State.OTHER)
    assert (older.age_s, older.threshold_s, older.thread_read, older.network_busy) == (
        0,
        None,
        False,
        None,
    )
    assert [socket.local for socket in older.sockets] == [Endpoint("::1", 80), Endpoint("?", 0)]
    assert older.sockets[0].broken_age_s is None


SOCKET = {"local": "[::1]:80", "remote": "10.0.0.1:4000", "state": "ESTABLISHED"}
json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
)
fields = st.sampled_from(
    [camel(field.name) for field in dataclasses.fields(FaultReport)] + ["time"]
)


@given(st.dictionaries(fields, json))
def test_report_of__any_object_is_read_or_refused(spec: dict[str, Any]) -> None:
    try:
        report = report_of({"spec": spec})
    except ObjectError:
        return
    written = REPORT.encode(report)
    assert REPORT.encode(REPORT.decode(FaultReport, written)) == written


@given(json)
def test_incident_of__any_order_is_read_or_refused(raw: Any) -> None:
    for entry in ({"metadata": raw}, incident(raw), {"metadata": {"name": "i"}, "status": raw}):
        try:
            found = incident_of(entry)
        except ObjectError:
            continue
        assert found.order is None or found.order.selector


def test_order__an_order_that_selects_everything_is_refused() -> None:
    raw = codec.encode(Order("1", Verb.STOP, {}, 1.0, 2.0))
    with pytest.raises(ObjectError, match="selector"):
        incident_of(incident({**raw, "selector": {}}))


def test_incident_of__an_incident_without_an_order() -> None:
    found = incident_of({"metadata": {"name": "i", "namespace": "n", "uid": "u"}})
    assert (found.namespace, found.phase, found.order) == ("n", "", None)


@given(moments)
def test_from_text__a_time_survives_to_the_microsecond(moment: float) -> None:
    assert rfc3339.from_text(rfc3339.to_text(moment)) == pytest.approx(moment, abs=1e-6)


def unbounded(schema: Any, path: str = "") -> list[str]:
    """What a writer may make as long as he likes."""
    found: list[str] = []
    if schema.get("type") == "string" and not {"enum", "format", "maxLength"} & schema.keys():
        found.append(path)
    if schema.get("type") == "array":
        found += [f"{path}[]"] if "maxItems" not in schema else []
        found += unbounded(schema["items"], f"{path}[]")
    values = schema.get("additionalProperties")
    if values is not None:
        found += [f"{path}{{}}"] if "maxProperties" not in schema else []
        found += unbounded(values, f"{path}{{}}")
    for name, part in schema.get("properties", {}).items():
        found += unbounded(part, f"{path}.{name}")
    return found


@pytest.mark.parametrize("kind", ["faultpolicies", "faultreports", "incidents"])
def test_fault_report__every_field_of_a_schema_has_an_end(kind: str) -> None:
    """Every agent of the cluster reads every policy: one tenant's must not cost all of them their memory."""
    crd = yaml.safe_load((CRDS / f"{kind}.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    assert unbounded(version["schema"]["openAPIV3Schema"]) == []


@pytest.mark.parametrize("age", [float("inf"), float("-inf"), float("nan"), 10**400, 1e12, True])
def test_report_of__an_age_that_no_clock_measures_is_refused(age: object) -> None:
    raw: dict[str, Any] = {"node": "a", "time": "2026-01-02T03:04:05Z", "sequence": 1}
    raw["ranks"] = [{"podUID": "u", "pid": 1, "role": "rank", "state": "futex", "ageS": age}]
    with pytest.raises(ObjectError, match=r"spec.ranks\[0\].ageS: expected a number"):
        report_of({"spec": raw})


@pytest.mark.parametrize("sequence", [1 << 64, -(1 << 63) - 1, 10**300])
def test_report_of__a_number_of_more_than_64_bits_is_refused(sequence: int) -> None:
    raw = {"node": "a", "time": "2026-01-02T03:04:05Z", "sequence": sequence}
    with pytest.raises(ObjectError, match=r"spec\.sequence: expected a whole number"):
        report_of({"spec": raw})


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+01:00"])
def test_report_of__a_time_that_could_not_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ObjectError, match="is not a time like"):
        report_of({"spec": {"node": "a", "time": text, "sequence": 1}})
