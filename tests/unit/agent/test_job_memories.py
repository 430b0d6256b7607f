"""What the agent keeps of each job: over its own restarts, and over those of the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.agent.job_memories import JobMemories, memory_of, words_of
from kcover_ebpf.api.fault_report import REPORT, FaultReport
from kcover_ebpf.api.incident import Incident, JobRef, Phase, Status, object_of, status_of
from kcover_ebpf.api.job_kinds import Gang, GangId
from kcover_ebpf.api.order import past_of as past_of_incident
from kcover_ebpf.diagnosis.clock.job_memory import JobMemory
from kcover_ebpf.diagnosis.clock.silences import joined
from kcover_ebpf.diagnosis.history.stacks import unbuilt
from kcover_ebpf.diagnosis.job_past import past_of
from kcover_ebpf.gang.rank_report import with_snapshots
from kcover_ebpf.model.silence_summary import PlaceSilences, SilenceSummary
from kcover_ebpf.settings import Policy
from kcover_ebpf.tunables.agent import MEMORIES_KEPT
from tests.unit.support.scripted_job import BARRIER, LOCK, all_wait, trained

BUILDS = ("0a1b2c3d", "4e5f6071")
BARE = tuple(f"libtorch.so+{at:x}" for at in range(20))


def gang(name: str = "train") -> Gang:
    return Gang(GangId.of("ns", {"job": name}), name, "Job")


def test_job_memories__a_restarted_agent_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    first = JobMemories(tmp_path / "jobs.json")
    memory = first.of(gang())
    memory.silences.observe(24 * 3600)
    memory.silences.learn("blocked_lock", 12.0)
    memory.waits.learn(BARRIER)
    memory.start_s, memory.step_s = 31.5, 4.25
    first.save(1e6)
    again = JobMemories(tmp_path / "jobs.json").of(gang())
    assert again.silences.summary == memory.silences.summary
    assert again.waits.knows(BARRIER)
    assert not again.waits.knows(LOCK)
    assert (again.start_s, again.step_s) == (31.5, 4.25)
    seconds = again.silences.summary.patience(Policy()).seconds
    assert 24 <= seconds < 40


def test_job_memories__waits_in_a_rebuilt_library_are_not_known(tmp_path: Path) -> None:
    first = JobMemories(tmp_path / "jobs.json")
    waits = [tuple(f"libtorch.so~{build}+{at:x}" for at in range(20)) for build in BUILDS]
    first.of(gang()).waits.learn(waits[0])
    first.save(1e6)
    again = JobMemories(tmp_path / "jobs.json").of(gang())
    assert [again.waits.knows(stack) for stack in waits] == [True, False]
    assert [unbuilt(stack) for stack in waits] == [BARE, BARE]


def test_job_memories__waits_of_an_older_agent_without_builds_are_learned_again(
    tmp_path: Path,
) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps({"ns/train": {"waits": [BARE], "stepS": 4.0}}))
    memory = JobMemories(file).of(gang())
    assert (memory.waits.count, memory.step_s) == (0, 4.0)


def test_job_memories__what_the_steps_of_a_job_are_is_kept_as_soon_as_it_is_known(
    tmp_path: Path,
) -> None:
    """An agent may be killed minutes before the next time; who follows it is as fast as it was."""
    file = tmp_path / "jobs.json"
    memories = JobMemories(file)
    memory = memories.of(gang())
    memories.save(1e6)
    memory.step_s = 0.5
    memories.save(1e6 + 1.0)
    assert JobMemories(file).of(gang()).step_s == 0.5
    memory.step_s = 0.7
    memories.save(1e6 + 2.0)
    assert JobMemories(file).of(gang()).step_s == 0.5, "a disk is not written to in each pass"


def test_job_memories__another_incarnation_of_the_job_has_the_same_memory(tmp_path: Path) -> None:
    memories = JobMemories(tmp_path / "jobs.json")
    assert memories.of(gang()) is memories.of(gang())
    assert memories.of(gang("other")) is not memories.of(gang())


def heard(memory: JobMemory) -> SilenceSummary:
    """What an agent elsewhere hears of a job of which this is known here."""
    stage = trained()
    stage.job.remember(memory)
    report = with_snapshots(FaultReport("n0", 1.0, 1), stage.job, {})
    sent = REPORT.decode(FaultReport, json.loads(json.dumps(REPORT.encode(report))))
    assert sent.silences is not None
    status = Status(Phase.RECOVERING, silences=joined([sent.silences, SilenceSummary()]))
    incident = Incident("ns", "i", JobRef("Job", "j", "u"), {"job": "train"}, status=status)
    written = object_of(incident) | {"status": status_of(status)}
    past = past_of_incident(json.loads(json.dumps(written)))
    assert past is not None
    assert past[0] == gang().id
    return past[1]


def test_job_memories__a_job_that_comes_from_other_nodes_has_the_past_it_had_there(
    tmp_path: Path,
) -> None:
    memory = JobMemory(start_s=31.5, step_s=4.25)
    memory.silences.observe(24 * 3600)
    for place, length_s in [("blocked_lock", 12.0), ("checkpoint", 70.0), ("checkpoint", 50.0)]:
        memory.silences.learn(place, length_s)
    memories = JobMemories(tmp_path / "jobs.json")
    memories.hear(gang().id, heard(memory))
    found = memories.of(gang())
    assert found.silences.summary.patience(Policy()) == memory.silences.summary.patience(Policy())
    assert found.silences.summary.places == memory.silences.summary.places
    assert (found.start_s, found.step_s) == (31.5, 4.25)
    assert memories.of(gang("other")).is_empty


def test_job_memories__what_was_seen_here_counts_more_than_what_is_heard(tmp_path: Path) -> None:
    memories = JobMemories(tmp_path / "jobs.json")
    own = memories.of(gang())
    own.silences.observe(60.0)
    memories.hear(gang().id, SilenceSummary(24 * 3600, 1, 70.0))
    assert memories.of(gang()) is own
    assert own.silences.observed_s == 60.0


def test_job_memories__hears_of_no_more_jobs_than_it_has_room_for(tmp_path: Path) -> None:
    memories = JobMemories(tmp_path / "jobs.json")
    for number in range(MEMORIES_KEPT + 1):
        memories.hear(gang(str(number)).id, SilenceSummary(3600.0))
    assert memories.of(gang("0")).is_empty
    assert not memories.of(gang("1")).is_empty


@pytest.mark.parametrize(
    "past",
    [
        SilenceSummary(-1.0, -1, -1.0, start_s=-1.0, step_s=-1.0),
        SilenceSummary(1e12, 1, 1e12, start_s=1e12, step_s=1e12),
        SilenceSummary(places=(PlaceSilences("p" * 10**6, 10**9, 1e12),) * 1000),
    ],
    ids=["negative", "huge", "many"],
)
def test_inherit__what_is_not_plausible_teaches_nothing(past: SilenceSummary) -> None:
    memory = JobMemory()
    memory.inherit(past)
    assert memory.is_empty
    assert memory.start_s == 0.0


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"ns/train": 7}', '{"ns/train": {"builtWaits": [1]}}'),
        *('{"ns/train": {"stepS": "4", "startS": -1}}', '{"ns/train": {"stepS": NaN}}'),
    ],
)
def test_job_memories__a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs.json").write_text(text)
    memory = JobMemories(tmp_path / "jobs.json").of(gang())
    assert memory.silences.summary.count == 0
    assert memory.waits.count == 0
    assert (memory.start_s, memory.step_s) == (0, 0)


def test_job_memories__the_job_that_ran_longest_ago_is_forgotten_first(tmp_path: Path) -> None:
    memories = JobMemories(tmp_path / "jobs.json")
    oldest = memories.of(gang("oldest"))
    for number in range(MEMORIES_KEPT):
        memories.of(gang(str(number)))
    assert memories.of(gang("oldest")) is not oldest


def test_job_memories__a_full_disk_costs_the_memory_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memories = JobMemories(tmp_path / "file" / "jobs.json")
    memory = memories.of(gang())
    memories.save(1e6, at_once=True)
    assert memories.of(gang()) is memory


def test_silences__a_stall_that_ended_by_itself_is_remembered_and_lengthens_the_patience() -> None:
    stage = trained(seconds=60)
    before = past_of(stage.job).patience(stage.job.policy).seconds
    stage.job.silences.observe(7 * 24 * 3600)
    calm = past_of(stage.job).patience(stage.job.policy).seconds
    assert calm < before
    for _ in range(2):
        stage.become(stage.rank(2), "futex", stack=LOCK)
        all_wait(stage, 2)
        stage.run(15)
        for proc in stage.procs.values():
            stage.become(proc, "train", stack=BARRIER)
        stage.run(30)
    summary = stage.job.silences.summary
    # the second is known by then, and late at most
    assert summary.count >= 1
    assert 12 <= summary.longest_s <= 17
    assert past_of(stage.job).patience(stage.job.policy).seconds >= 24


LENGTHS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5000)), max_size=200)


@given(LENGTHS, st.floats(0, 1e6))
def test_memory_of__reads_what_words_of_wrote(past: list[tuple[str, float]], hours: float) -> None:
    found = JobMemory(start_s=4.25, step_s=0.5)
    found.silences.observe(hours * 3600)
    for place, length_s in past:
        found.silences.learn(place, length_s)
    again = memory_of(json.loads(json.dumps(words_of(found))))
    summary = again.silences.summary
    assert summary == pytest.approx(found.silences.summary) or summary == found.silences.summary
    assert (again.start_s, again.step_s) == (found.start_s, found.step_s)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
        max_leaves=12,
    )
)
def test_memory_of__a_damaged_record_teaches_nothing_and_raises_nothing(words: object) -> None:
    for damaged in ({"observedS": words, "silences": words}, {"silences": [words]}):
        found = memory_of({**words_of(JobMemory()), **damaged}).silences
        assert found.observed_s >= 0
        assert all(silence.length_s > 0 for silence in found.kept)


@pytest.mark.parametrize("length_s", [0.0, -3.0, 1e6])
def test_memory_of__a_silence_of_no_plausible_length_is_none(length_s: float) -> None:
    silences = [["reading", length_s, 10.0], ["saving", 12.0, 20.0]]
    found = memory_of({**words_of(JobMemory()), "silences": silences}).silences.summary
    assert (found.count, found.longest_s) == (1, 12.0)
