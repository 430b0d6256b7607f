"""The bench of scripted GPU-shaped jobs: short tapes, and what its report says of them."""

from __future__ import annotations

import fnmatch
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.tapebench.bench import faulty, healthy, line_of, main, play
from bench.tapebench.catalog import SHAPES
from bench.tapebench.faults import FAULTS
from bench.tapebench.gang import Gang
from bench.tapebench.life import PHASES
from bench.tapebench.report import markdown
from bench.tapebench.sensor import ScriptedSensor
from bench.tapebench.tape import Outcome, Tape
from kcover_ebpf.facts.kernel import CALM_EVERY, Detail, ProcessTotals, SampleRequest, ThreadSample
from kcover_ebpf.ids import NS, Pid


@pytest.mark.parametrize("shape", ["step-5s-spin", "evaluation-block"])
def test_tape__a_quarter_of_an_hour_of_a_healthy_job_trains_and_ends_nothing(shape: str) -> None:
    outcome = Tape(SHAPES[shape], seed=1).play(0.25)
    assert outcome.hours == pytest.approx(0.25, rel=0.01)
    assert outcome.reported["WORKING training"] >= 1
    assert outcome.shutdown == ""


def test_tape__a_rank_in_a_lock_is_found_and_the_job_ended_for_it() -> None:
    outcome = Tape(SHAPES["step-5s-yield"], seed=2, fault=FAULTS["lock"]).play(1.0)
    assert outcome.named == (outcome.rank,) == (outcome.shutdown_rank,)
    assert outcome.shutdown == "HUNG blocked_lock"
    assert outcome.detected_s is not None
    assert 0 < outcome.detected_s < 30


def test_tape__a_lock_is_found_though_the_clock_of_the_waiting_ranks_saves_a_register() -> None:
    """They were found in their interpreters and their drivers in turns, and so were training."""
    outcome = Tape(SHAPES["clock-5s"], seed=2, fault=FAULTS["lock"]).play(1.0)
    assert outcome.named == (outcome.rank,) == (outcome.shutdown_rank,)


def test_healthy__only_the_shapes_that_are_asked_for_are_played() -> None:
    assert {name for name, *_ in healthy(8.0, 1.0, 1, "clock-*")} == set(
        fnmatch.filter(SHAPES, "clock-*")
    )
    assert {name for name, *_ in faulty(1, 1, "graphs*")} == {"graphs", "graphs-20s"}


def test_main__a_pattern_that_fits_no_shape_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as failed:
        main(["--only", "clok-*"])
    assert failed.value.code == 2
    assert "--only clok-*: no shape fits" in capsys.readouterr().err


def test_tape__a_lock_that_was_read_in_the_rest_of_its_step_is_found() -> None:
    """The data of that step still arrived, and once made the wait at the lock a known one."""
    outcome = Tape(SHAPES["step-20s-yield"], seed=1000, fault=FAULTS["lock"]).play(1.0)
    assert outcome.named == (outcome.rank,)


def test_tape__a_loop_in_python_is_reported_with_its_rank_and_ends_nothing() -> None:
    outcome = Tape(SHAPES["step-5s-block"], seed=3, fault=FAULTS["python-loop"]).play(1.0)
    assert outcome.named == (outcome.rank,)
    assert (outcome.text, outcome.shutdown) == ("UNKNOWN computing", "")


def test_tape__a_long_step_that_yields_is_found_on_its_device_as_soon_as_it_is_read() -> None:
    """It is not read for a minute; then it must be known for what it is before anything is said of it."""
    outcome = Tape(SHAPES["step-120s-yield"], seed=101).play(0.045)
    assert [text for text in outcome.reported if text.startswith("HUNG")] == []


def test_tape__the_same_seed_plays_the_same_tape() -> None:
    one, two, other = (Tape(SHAPES["slow-start"], seed).play(0.02) for seed in (1, 1, 2))
    assert one == two
    assert (one.passes, one.suspicious) != (other.passes, other.suspicious)


@pytest.mark.parametrize("phase", PHASES)
def test_life__every_phase_is_a_round_that_ends(phase: str) -> None:
    shape = replace(SHAPES["life-block"], world=4)
    found = PHASES[phase](shape, random.Random(phase))
    lengths_s = [sum(seconds for seconds, _ in plan) for plan in found.plans.values()]
    assert set(found.plans) == set(found.tails) == set(range(4))
    assert 2.0 < max(lengths_s) + found.device_s < 1000


@pytest.mark.parametrize("phase", ["frozen-rank", "suspended", "polls-5ms"])
def test_life__a_phase_ends_no_job(phase: str) -> None:
    shape = replace(SHAPES["life-clock"], world=4, pause=PHASES[phase], every_s=(20.0, 20.0))
    outcome = Tape(shape, seed=1).play(0.1)
    assert outcome.suspicious > 0
    assert outcome.shutdown == ""


def test_sensor__a_calm_process_is_sampled_whole_once_in_twenty_passes() -> None:
    gang = Gang(random.Random(1), 1, proxies=False, autograd=False)
    gang.now_ns = NS
    gang.add(100, 1, 0, gang.now_ns)
    sensor = ScriptedSensor(gang, rdma=True)

    def one_pass() -> tuple[int, int]:
        gang.advance(gang.now_ns + NS)
        facts = list(sensor.sample(()))
        kinds = ThreadSample, ProcessTotals
        sent = [sum(isinstance(fact, kind) for fact in facts) for kind in kinds]
        return sent[0], sent[1]

    assert one_pass() == (1, 1), "the first; of threads that sleep beside it nothing is sent"
    calm = [one_pass() for _ in range(CALM_EVERY)]
    assert [threads for threads, _ in calm] == [1] * CALM_EVERY, "its first thread burns a CPU"
    assert sum(totals for _, totals in calm) == 1
    sensor.request({Pid(100): SampleRequest(Detail.ALL, every=1)})
    assert [one_pass() for _ in range(3)] == [(3, 1)] * 3


def line(**changes: object) -> dict[str, object]:
    return {
        "shape": "a",
        "seed": 1,
        "fault": "",
        "hours": 1.0,
        "passes": 9,
        "reported": {},
    } | changes


def test_line_of__rank_0_is_a_rank_like_any_other() -> None:
    found = json.loads(line_of(Outcome("a", 1, "lock", rank=0)))
    assert found["rank"] == 0
    assert "detected_s" not in found


def test_markdown__the_report_counts_every_healthy_hour_and_every_false_shutdown() -> None:
    ended = line(seed=2, hours=0.5, shutdown="HUNG storage", evidence=["time: long"])
    text = markdown([line(), ended])
    assert text.splitlines()[2].startswith("All of this is synthetic")
    assert "**1.5 healthy job-hours, 1 false shutdowns.**" in text
    assert "missed" in text
    assert "- ended: a, seed 2: HUNG storage: time: long" in text


def test_markdown__the_report_counts_right_names_from_wrong_ones() -> None:
    fault = line(fault="lock", rank=3)
    lines = [
        fault | {"detected_s": 4.0, "named": (3,), "shutdown": "HUNG", "shutdown_rank": 3},
        fault | {"detected_s": 6.0, "named": (5, 3), "shutdown": "HUNG", "shutdown_rank": 5},
        fault,
    ]
    row = re.search(r"\| lock .*", markdown(lines))
    assert row is not None
    assert row[0] == "| lock | 3 | 2 | 5.0 | 6.0 | 1 | 1 | 1 | 2 | 1 |"


def test_healthy__no_more_is_played_than_was_asked_for() -> None:
    played = list(healthy(3.0, 0.5, seed=1))
    assert sum(hours for *_, hours in played) == pytest.approx(3.0)
    assert max(hours for *_, hours in played) == 0.5
    assert {fault for _, _, fault, _ in faulty(1, seed=1)} == set(FAULTS)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--hours", "-1"], ["--report", "/no/such"]])
def test_main__bad_arguments_are_one_clear_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_main__a_run_that_was_cut_short_continues_where_it_was(tmp_path: Path) -> None:
    into = tmp_path / "lines.jsonl"
    words = ["--hours", "0.02", "--longest", "0.01", "--fault-rounds", "0", "--into", str(into)]
    assert main(words) == 0
    whole = into.read_bytes()
    assert len(whole.splitlines()) == 2
    into.write_bytes(whole[: len(whole) - 9])
    assert main(words) == 0
    assert into.read_bytes() == whole
    assert main(words) == 0
    assert into.read_bytes() == whole


def test_play__healthy_jobs_have_few_ranks_and_many() -> None:
    outcomes = [play(("step-5s-block", seed, "", 0.01)) for seed in range(4)]
    assert {outcome.ranks for outcome in outcomes} == {2, 4, 8}
    assert play(("step-5s-block", 0, "kill", 0.0)).ranks == 8
