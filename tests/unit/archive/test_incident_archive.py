"""An archive of an incident as files, and back: nothing is lost, and what is damaged is named."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kcover_ebpf.api.incident import Incident, JobRef, Moment, Phase, Status
from kcover_ebpf.archive.incident_archive import Archive, merged, packed, unpacked
from kcover_ebpf.archive.manifest import SCHEMA, MissingPart, plain
from kcover_ebpf.archive.node_part import ArchivedThread, EvidenceTrigger, GroupPressure, NodePart
from kcover_ebpf.errors import UsageError
from kcover_ebpf.model.traced import GpuKernel, Stack
from kcover_ebpf.model.verdict import Cause, Verdict, VerdictKind
from tests.unit.support import report_builders as build

STATUS = Status(
    verdict=Verdict(kind=VerdictKind.HUNG, cause=Cause.STOPPED),
    phase=Phase.SHUTTING_DOWN,
    message="why",
    timeline=(Moment("Open", 10.0, "HUNG"), Moment("ShuttingDown", 12.0)),
)
INCIDENT = Incident("ns", "j-abc", JobRef("Job", "j", "uid"), build.SELECTOR, status=STATUS)


def part(node: str = "a", time_s: float = 100.0) -> NodePart:
    return NodePart(
        node=node,
        time_s=time_s,
        trigger=EvidenceTrigger.STOP,
        version="1",
        report=build.report(node, build.rank(0), build.rank(2)).report,
        stacks=(Stack(100, 100, 0, ("step (train.py:1)",), ("futex (libc)",), ("futex_wait",)),),
        threads=(ArchivedThread(100, 100, "python3", "S", "futex in futex_wait", 0, "rank", 2.5),),
        pressure=(GroupPressure("j-0 abc", cpu="some avg10=0.00", memory_bytes=5),),
        kernels=(GpuKernel(0, "spin", "active", (132, 1, 1), (1024, 1, 1), 100, 0),),
        checkpoints=("j-0/main: /var/lib/kubelet/checkpoints/x.tar",),
        logs={"j-0.main.log": "step 1\nstep 2\n"},
        facts=('{"event":"fact"}',),
        unobserved=("kernel frames (they need CAP_SYS_ADMIN)",),
    )


ARCHIVE = Archive("ns/j", "j-abc", INCIDENT, (part("a"), part("b")), (MissingPart("c", "gone"),))


def test_archive__what_is_packed_is_unpacked() -> None:
    assert unpacked(packed(ARCHIVE), "x") == ARCHIVE


def test_archive__the_manifest_has_schema_checksums_and_the_parts_by_node() -> None:
    files = packed(ARCHIVE)
    manifest = json.loads(files["manifest.json"])
    assert manifest["schema"] == SCHEMA
    assert {entry["path"] for entry in manifest["files"]} == set(files) - {"manifest.json"}
    assert [node["folder"] for node in manifest["nodes"]] == ["nodes/a", "nodes/b"]
    assert all(len(entry["sha256"]) == 64 for entry in manifest["files"])


def test_archive__a_changed_file_and_a_missing_one_are_named_and_the_others_are_read() -> None:
    files = packed(ARCHIVE)
    files["nodes/a/stacks.json"] = b'{"stacks": []}'
    files["nodes/b/report.json"] = b"\x00"
    del files["nodes/b/threads.json"]
    found = unpacked(files, "x")
    said = {missing.what: missing.why for missing in found.missing}
    assert "checksum" in said["nodes/a/stacks.json"]
    assert "not there" in said["nodes/b/threads.json"]
    assert [part.report is None for part in found.parts] == [False, True]
    assert found.parts[0].logs == {"j-0.main.log": "step 1\nstep 2\n"}


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "it has no manifest.json"),
        ({"manifest.json": b"[1]"}, "not a JSON object"),
        ({"manifest.json": b"{"}, "not JSON"),
        ({"manifest.json": b'{"schema": "kcover.io/archive/v9"}'}, "schema is not"),
        ({"manifest.json": b'{"schema": "kcover.io/archive/v1"}'}, "missing"),
    ],
)
def test_unpacked__what_is_no_archive_is_refused(files: dict[str, bytes], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        unpacked(files, "x")


def test_packed__names_of_nodes_and_logs_lead_to_no_other_folder() -> None:
    hostile = replace(part("../../etc"), logs={"../../x": "y"})
    files = packed(Archive("ns/j", parts=(hostile, part(".._.._etc"), part("_.._etc"))))
    assert all(not name.startswith("/") and ".." not in name.split("/") for name in files)
    assert len({name.split("/")[1] for name in files if name.startswith("nodes/")}) == 3
    assert plain("..") == "_"


def test_merged__ranks_and_frames_that_were_gone_by_the_later_part_are_those_of_the_earlier() -> (
    None
):
    early, late = part("a", 100.0), part("a", 200.0)
    assert early.report is not None
    assert early.report.ranks
    blank = tuple(replace(s, rank=None, python=(), native=(), kernel=()) for s in early.stacks)
    late = replace(late, report=replace(early.report, ranks=()), stacks=blank)
    whole = merged([Archive("ns/j", "j-abc", parts=(found,)) for found in (early, late)], None)
    (kept,) = whole.parts
    assert kept.report == early.report
    assert kept.stacks == early.stacks


def test_merged__the_later_part_of_a_node_wins_and_keeps_what_only_the_other_had() -> None:
    early = replace(part("a", 100.0), threads=())
    late = replace(part("a", 200.0), logs={}, stacks=())
    archives = [Archive("ns/j", "j-abc", parts=(found,)) for found in (late, early, part("b"))]
    whole = merged(archives, INCIDENT, [MissingPart("c", "no agent")])
    assert [found.node for found in whole.parts] == ["a", "b"]
    kept = whole.parts[0]
    assert (kept.time_s, kept.stacks, kept.threads) == (200.0, early.stacks, late.threads)
    assert kept.logs == early.logs
    assert whole.missing == (MissingPart("c", "no agent"),)
    assert (whole.job, whole.name) == ("ns/j", "j-abc")
