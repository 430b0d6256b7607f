"""tools/gpucheck: what hangs is ended, what is left is kept, and the arithmetic of the report."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.gpucheck import children, nccl, observe, overhead, report, runner, sensor
from tools.gpucheck.plan import Notes, NotPossible, Plan


def test_run__a_child_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = (
        f"import os, subprocess, time; p = subprocess.Popen(['sleep', '97'], process_group=0); \
open({str(file)!r}, 'w').write(str(p.pid)); time.sleep(97)"
    )
    said = children.run([sys.executable, "-c", script], 3.0, tmp_path / "log")
    assert said == "not over after 3 s"
    grandchild = Path(f"/proc/{file.read_text()}/stat")
    deadline_s = time.monotonic() + 5
    while grandchild.exists() and ") Z " not in grandchild.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_run__what_a_child_leaves_may_end_in_order(tmp_path: Path) -> None:
    script = "(trap 'touch ended; exit' TERM; while :; do sleep 0.05; done) & sleep 0.3; exit 4"
    said = children.run(["sh", "-c", f"cd {tmp_path}; {script}"], 10.0, tmp_path / "log")
    assert said == "its process ended with code 4: no output"
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 0", ""),
        ("echo why >&2; exit 4", "its process ended with code 4: why"),
        ("kill -SEGV $$", "its process was ended by SIGSEGV"),
    ],
)
def test_run__how_a_child_ended(script: str, said: str, tmp_path: Path) -> None:
    assert children.run(["sh", "-c", script], 10.0, tmp_path / "log") == said


def test_run_parts__what_a_part_found_before_it_hung_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(tmp_path, tmp_path, quick=True)
    Notes(tmp_path / "nvml.json").add("power", {"median_us": 1.0})
    monkeypatch.setattr(children, "module", lambda *_: ["sleep", "97"])
    monkeypatch.setattr(runner, "LIMITS_S", {"nvml": 0.5})
    said: list[str] = []
    left = runner.run_parts(plan, said.append, [["nvml"]])["nvml"]
    assert (left["state"], left["why"]) == ("not possible here", "not over after 0 s")
    assert left["facts"] == {"power": {"median_us": 1.0}}
    assert "not over" in said[-1]
    assert "| power | 1.0 |" in report.render({}, {"nvml": {**left, "facts": _COST}})


_COST = {"power": {"median_us": 1.0, "max_us": 2.0}}


def test_probe__a_driver_that_does_not_answer_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_PROBE_S", 0.3)
    monkeypatch.setattr(children, "module", lambda *_: ["sleep", "97"])
    with pytest.raises(NotPossible, match="does not answer: not over"):
        runner.probe(Plan(tmp_path, tmp_path, quick=True))


def test_render__a_page_of_nothing_says_why_in_every_section() -> None:
    page = report.render({}, {})
    assert page.count("not possible here: not run") == 7


def test_sample_registers__registers_of_a_sleeping_process_are_one_set_in_the_c_library() -> None:
    with subprocess.Popen(["sleep", "97"]) as process:
        try:
            time.sleep(0.2)
            found = observe.sample_registers(process.pid, process.pid)
        except NotPossible as problem:
            pytest.skip(f"ptrace is refused here: {problem}")
        finally:
            process.kill()
    assert found["sets_compared_in_16"] == 1
    assert [name.startswith("libc") for name in found["modules"]] == [True]


def test_usage__a_thread_that_has_ended_has_no_counters() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    with pytest.raises(NotPossible, match="has ended"):
        observe.usage(process.pid, process.pid)


def verdict(time_s: float, kind: str, rank: int | None = None) -> dict[str, object]:
    culprit = None if rank is None else {"rank": rank}
    base = {"event": "verdict", "time": time_s, "verdict": kind, "cause": "stopped"}
    return {**base, "culprit": culprit, "evidence": [], "unobserved": ["a"]}


def test_summary__what_was_reported_before_the_fault_is_false() -> None:
    events = [verdict(1, "WORKING"), verdict(2, "HUNG", 0), verdict(7, "HUNG", 1)]
    found = sensor.summary(events, 5.0)
    assert [other_verdict["rank"] for other_verdict in found["false verdicts"]] == [0]
    assert (found["first"]["rank"], found["first"]["after_s"]) == (1, 2.0)


def test_summary__without_a_fault_every_verdict_of_one_is_false() -> None:
    found = sensor.summary([verdict(2, "HUNG", 0), verdict(3, "UNKNOWN")], None)
    assert len(found["false verdicts"]) == 1
    assert "first" not in found
    json.dumps(found, allow_nan=False)


def test_difference__the_difference_is_taken_between_neighbouring_blocks() -> None:
    found = overhead.difference({"blocks": [100.0, 200.0]}, {"blocks": [101.0, 204.0]})
    assert found == {"median_percent": 1.5, "least_percent": 1.0, "most_percent": 2.0}


def test_read_steps__half_a_line_of_steps_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    file.write_text("1.5 0.5\n2.0 0.5\n2.5")
    assert overhead.read_steps(file) == [(1.5, 0.5), (2.0, 0.5)]


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("never",)


def test_contents__a_dump_that_names_code_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = nccl._contents(pickle.dumps({"entries": [_Bomb()]}))
    assert found["understood"].startswith("no: names posix.mkdir")
    assert list(tmp_path.iterdir()) == []
