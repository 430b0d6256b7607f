"""The Incident resource: there and back, a bounded timeline, and agreement with its schema."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from kcover_ebpf.api import incident
from kcover_ebpf.api.codec import camel
from kcover_ebpf.api.incident import Phase, RestartAction, RestartMethod, Status
from kcover_ebpf.api.order import Order, Verb
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.model.silence_summary import PlaceSilences, SilenceSummary
from kcover_ebpf.model.verdict import (
    Cause,
    Certainty,
    Culprit,
    Evidence,
    EvidenceKind,
    Verdict,
    VerdictKind,
)
from tests.unit.support.judged import judged

CRD = Path(__file__).resolve().parents[3] / "charts/kcover-ebpf/crds/incidents.yaml"

PAST = SilenceSummary(3600.0, 1, 70.0, 600.0, 31.5, 4.25, (PlaceSilences("checkpoint", 1, 70.0),))


def full() -> Status:
    status = Status(
        Phase.OPEN,
        "m",
        verdict=Verdict(kind=VerdictKind.HUNG, cause=Cause.STOPPED, since_s=5.5, victims=(1, 2)),
    )
    action = RestartAction(RestartMethod.REPLACE, "Gone", 2, 7.25, "r", {"grace": "30"})
    order = Order("x-1-stop", Verb.STOP, {"a": "b"}, 10.0, 20.0)
    status = status.enter(Phase.SHUTTING_DOWN, 6.0, "down").begin(RestartMethod.REPLACE, 6.5)
    culprit = Culprit(rank=1, pod="j-1", pod_uid="u", node="n")
    evidence = Evidence(EvidenceKind.STATE, "it is stopped", "n")
    return judged(
        replace(status, action=action, order=order, nodes=("n",), silences=PAST),
        culprit=culprit,
        evidence=(evidence,),
        deadline_s=600.0,
        unobserved=("RDMA",),
        graph=("0 -> 1",),
        certainty=Certainty.PROVEN,
        acts_at_s=10.5,
        acts_why="stopped alone",
    )


def test_incident_of__there_and_back():
    made = incident.Incident("ns", "i", incident.JobRef("Job", "j", "u", "batch/v1"), {"a": "b"})
    raw = incident.object_of(made) | {"status": incident.status_of(full())}
    back = incident.incident_of(raw)
    assert back.status == full()
    assert (back.job, dict(back.selector)) == (made.job, {"a": "b"})


def test_kept_verdict__all_but_what_the_object_names_itself_is_kept():
    verdict = full().verdict
    assert verdict is not None
    assert incident.kept_verdict(verdict) == verdict
    lost = {
        field.name for field in fields(Verdict) if getattr(verdict, field.name) == field.default
    }
    assert lost == {"time_s", "job", "incident", "waits", "factor"}


def test_incident_of__a_status_without_a_cause_has_no_verdict():
    raw = incident.object_of(incident.Incident("ns", "i", incident.JobRef("Job", "j", "u"), {}))
    found = incident.incident_of(raw | {"status": {"phase": "Open", "verdict": "HUNG"}})
    assert found.status == Status(Phase.OPEN)


def test_status_of__what_is_written_is_in_the_schema():
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    known = schema["properties"]["status"]["properties"]
    written = incident.status_of(full())
    assert set(written) <= set(known)
    for field in fields(Status):
        if field.name == "verdict":
            continue  # its fields are written as if they were the status's own
        assert (field.metadata.get("key") or camel(field.name)) in known, field.name
    assert [phase.value for phase in Phase] == known["phase"]["enum"]
    kinds = known["evidence"]["items"]["properties"]["kind"]["enum"]
    assert {kind.value for kind in EvidenceKind} == set(kinds)
    assert [kind.value for kind in VerdictKind] == known["verdict"]["enum"]
    places = written["silences"]["places"][0]
    assert set(places) <= set(known["silences"]["properties"]["places"]["items"]["properties"])
    for key in ("action", "order", "culprit", "silences"):
        assert set(written[key]) <= set(known[key]["properties"]), key
    assert set(written["restarts"][0]) <= set(known["restarts"]["items"]["properties"])


def test_status__a_timeline_keeps_its_beginning_and_its_end():
    status = Status(Phase.OPEN)
    for number in range(200):
        status = status.enter(Phase.OPEN, float(number), "x" * 2000)
    assert len(status.timeline) <= 64
    assert (status.timeline[0].time_s, status.timeline[-1].time_s) == (0.0, 199.0)
    assert len(status.message) == 1024


@pytest.mark.parametrize(
    "raw",
    [{}, {"metadata": {"name": "x"}}, {"metadata": {"name": "x"}, "spec": {"job": {"kind": 3}}}],
)
def test_incident_of__an_object_of_another_shape_is_refused(raw):
    with pytest.raises(ObjectError):
        incident.incident_of(raw)
