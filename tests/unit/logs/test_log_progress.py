"""Whatever a program prints, its rules and its progress are read without an error, wherever blocks are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.logs.job_rule_watch import JobRuleWatch
from kcover_ebpf.logs.normal import NormalLines
from kcover_ebpf.logs.progress_watch import ProgressWatch

NOW_S = 10_000.0
RULES = tuple(
    JobRule(line.value, line, within_seconds=60, every_seconds=20)
    if line is KnownLine.CHECKPOINT
    else JobRule(line.value, line, every_seconds=20, above=0.0, below=1e9)
    for line in KnownLine
)
WORDS = st.sampled_from(
    [
        "step ", "step: 12", "iteration", "global_step=7.00", " 42/100 [", "Epoch 3: ", "loss", ": ", "= ", "nan",
        "inf",
        "1e400", "1,234", ",", ".", "tps: 4,521", "tok/s", "time 203.11ms", "1.81s/it", "grad norm", "checkpoint ",
        "saved", "Saving model checkpoint", "is complete", "kcover: ", "phase x", " up to 99999999999 s", " up to 9 s",
        " ends", "kcover: checkpoint 12 is complete", "\n", "\r", "\xff", "\u2501", "consumed tokens: 1,000", "9" * 40,
        "Epoch(train)  [1][ 50/391]", "Train: 0 [  50/1251",
    ]
)  # fmt: skip
LOGS = st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=30)


def fed(data: bytes, cuts: list[int]) -> tuple[object, object, object]:
    normal, rules, progress = NormalLines(), JobRuleWatch(RULES), ProgressWatch(3600.0)
    rules.begin(NOW_S - 50)
    progress.begin()
    position = 0
    for end in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        block = normal.feed(data[position:end])
        rules.feed(block, NOW_S)
        progress.feed(block, NOW_S)
        position = end
    rules.feed(normal.finish(), NOW_S)
    return rules.readings(NOW_S), progress.progress(NOW_S), progress.phase(NOW_S)


@given(parts=LOGS)
def test_feed__any_text_is_read(parts: list[str]) -> None:
    readings, progress, phase = fed("".join(parts).encode("utf-8", "replace"), [])
    assert len(readings) == len(RULES)  # type: ignore[arg-type]
    if progress is not None:
        assert progress.step is None or progress.step >= 0  # type: ignore[attr-defined]
    assert phase is None or phase.left_s > 0  # type: ignore[attr-defined]


@given(lines=st.lists(LOGS, max_size=6), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_feed__where_blocks_are_cut_changes_no_rule(
    lines: list[list[str]], cuts: list[int]
) -> None:
    data = "".join("".join(parts).replace("\r", "") + "\n" for parts in lines).encode(
        "utf-8", "replace"
    )
    assert fed(data, cuts)[0] == fed(data, [])[0]
