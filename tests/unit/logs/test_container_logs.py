"""The log of a container: partial lines, rules, tracebacks, and what of it may be reported."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcover_ebpf.api import rfc3339
from kcover_ebpf.api.codec import encode
from kcover_ebpf.api.log_report import ContainerLog, LoggedTraceback
from kcover_ebpf.logs import exit_codes, printed_steps, rules
from kcover_ebpf.logs import lines as log_lines
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import LogLine, Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.partial_lines import MOST_LINE_BYTES, PartialLines
from kcover_ebpf.logs.printed_steps import PrintedStep
from kcover_ebpf.logs.tracebacks import FoundTraceback, TracebackFinder
from kcover_ebpf.run.outcome import EXIT_SHUT_DOWN

NOW_S = rfc3339.from_text("2026-11-22T10:01:00Z")
RULES = tuple(rule for rule in rules.shipped() if rule.source is Source.CONTAINER)


def cri(text: str, *, at: str = "10:00:00", stream: str = "stderr", tag: str = "F") -> bytes:
    return f"2026-11-22T{at}.5Z {stream} {tag} {text}\n".encode()


def lines(text: str, **how: str) -> bytes:
    return b"".join(cri(line, **how) for line in text.splitlines())


TRACEBACK = """Traceback (most recent call last):
  File "/workspace/train.py", line 88, in <module>
    main(token="hf_secret")
    ~~~~^^^^^^^^^^^^^^^^^^
  File "/workspace/train.py", line 71, in main
    loss = model(batch)
  File "/usr/lib/python3/dist-packages/torch/nn/modules/module.py", line 1501, in _call_impl
    return forward_call(*args, **kwargs)
ValueError: expected 4 channels, got token hf_secret"""


def read(*blocks: bytes, start: int = 0) -> ContainerLog:
    reader = ContainerLogReader("uid", "main", RULES)
    for index, block in enumerate(blocks):
        reader.feed(Chunk(start, block, is_first=index == 0), NOW_S)
    shown = reader.summary(NOW_S)
    assert shown is not None
    return shown


def tracebacks(text: bytes) -> list[FoundTraceback]:
    return list(TracebackFinder().feed(text))


# --- partial lines


def whole(log: bytes) -> bytes:
    """What is made of it, less the empty lines in the place of pieces."""
    made = PartialLines().whole(log)
    assert made.count(b"\n") == log.count(b"\n")
    return made.lstrip(b"\n").replace(b"\n\n", b"\n")


def test_container_logs__pieces_of_two_streams_are_joined_each() -> None:
    block = (
        cri("first ", tag="P")
        + cri("other", stream="stdout", tag="P")
        + cri("second", tag="F")
        + cri(" end", stream="stdout", tag="F")
        + cri("alone")
    )
    assert whole(block) == (cri("first second") + cri("other end", stream="stdout") + cri("alone"))


def test_container_logs__what_a_progress_bar_drew_are_parts_of_one_line() -> None:
    bar = cri("10%\r2", tag="P") + cri("x", stream="stdout") + cri("0%\r30%\r", tag="F")
    parts = [cri(text).replace(b"\n", b"\r") for text in ("10%", "20%", "30%")]
    other = cri("x", stream="stdout")
    assert PartialLines().whole(bar) == b"".join(
        (parts[0], b"\n", other, parts[1], parts[2], cri(""))
    )


def test_container_logs__a_message_that_the_runtime_cut_in_the_middle_is_recognised() -> None:
    filler = "x" * 16_000
    shown = read(cri(f"{filler} CUDA out of", tag="P"), cri(" memory. Tried to allocate"))
    assert [finding.rule for finding in shown.findings] == ["cuda_out_of_memory"]


def test_container_logs__a_line_without_end_takes_bounded_memory() -> None:
    pieces, piece = PartialLines(), cri("y" * 16_000, tag="P")
    tracemalloc.start()
    for _ in range(400):
        assert pieces.whole(piece) == b"\n"
    for _ in range(400):
        assert pieces.whole(b"z" * 16_000) == b""
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MOST_LINE_BYTES
    assert len(pieces.whole(b"\n" + cri("end"))) < 3 * MOST_LINE_BYTES


def test_container_logs__after_a_gap_the_rest_of_a_line_is_no_line() -> None:
    pieces = PartialLines()
    pieces.whole(cri("begin", tag="P"))
    pieces.skip()
    assert pieces.whole(b"dle of a line\n" + cri("whole")) == cri("whole")


CHUNKY = st.lists(
    st.tuples(
        st.sampled_from(["stdout", "stderr"]),
        st.sampled_from("PF"),
        st.text(st.characters(codec="ascii", exclude_characters="\n"), max_size=20),
    ),
    max_size=12,
)


@given(CHUNKY, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_container_logs__where_blocks_are_cut_changes_nothing(
    parts: list[tuple[str, str, str]], chance: random.Random
) -> None:
    log = b"".join(cri(text, stream=stream, tag=tag) for stream, tag, text in parts)
    at_once, cut = PartialLines().whole(log), PartialLines()
    made, position = b"", 0
    while position < len(log):
        size = chance.randint(1, 40)
        made += cut.whole(log[position : position + size])
        position += size
    assert made == at_once


# --- tracebacks


def test_traceback__is_identified_by_frames_and_error_and_not_by_its_message() -> None:
    (first,) = tracebacks(lines(TRACEBACK))
    (second,) = tracebacks(lines(TRACEBACK.replace("hf_secret", "other")))
    (moved,) = tracebacks(lines(TRACEBACK.replace("line 71", "line 72")))
    (other,) = tracebacks(lines(TRACEBACK.replace("ValueError", "KeyError")))
    assert first.fingerprint == second.fingerprint
    assert len({first.fingerprint, moved.fingerprint, other.fingerprint}) == 3
    assert first.place == "train.py:71"


@pytest.mark.parametrize(
    ("before", "step", "epoch"),
    [
        ("step 1200 | loss: 0.3", 1200, None),
        ("epoch 3 step: 17/100 loss 0.3", 17, 3),
        ("{'global_step': 42, 'loss': 0.31}", 42, None),
        ("Iteration [ 55/1000 ]", 55, None),
        (" 12%|#   | 120/1000 [00:10<01:13, 12.0it/s]", 120, None),
        ("max_steps: 1000, step time 0.25", None, None),
        ("loss 0.3", None, None),
    ],
)
def test_traceback__the_last_step_before_it(
    before: str, step: int | None, epoch: int | None
) -> None:
    log = lines(f"step 3\nepoch 1\n{before}") if step is not None else lines(before)
    (found,) = tracebacks(log + lines(TRACEBACK))
    assert found.printed.step == step
    assert found.printed.epoch == (epoch or (1 if step is not None else None))


def test_traceback__those_of_ranks_that_write_at_once_are_distinguished_by_their_prefix() -> None:
    other = TRACEBACK.replace("line 71", "line 99")
    mixed = "\n".join(
        f"[rank{rank}]: {line}"
        for pair in zip(TRACEBACK.splitlines(), other.splitlines(), strict=True)
        for rank, line in enumerate(pair)
    )
    assert [traceback.place for traceback in tracebacks(lines(mixed))] == [
        "train.py:71",
        "train.py:99",
    ]


def test_traceback__across_blocks_and_streams() -> None:
    finder = TracebackFinder()
    whole = lines(TRACEBACK)
    half = whole.find(b"\n", len(whole) // 2) + 1
    assert list(finder.feed(cri("step 5") + whole[:half])) == []
    noise = cri("step 6", stream="stdout")
    (found,) = finder.feed(noise + whole[half:])
    assert (found.place, found.printed.step) == ("train.py:71", 6)


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "KeyboardInterrupt",
        "subprocess.CalledProcessError: Command 'deepspeed' returned non-zero exit status 1.",
    ],
)
def test_traceback__of_who_noticed_a_failure_is_secondary(error: str) -> None:
    head, _, _ = TRACEBACK.rpartition("\n")
    (found,) = tracebacks(lines(f"{head}\n{error}"))
    assert found.secondary
    (own,) = tracebacks(lines(TRACEBACK))
    assert not own.secondary


def test_traceback__a_file_name_that_is_a_text_is_not_reported() -> None:
    odd = TRACEBACK.replace("/workspace/train.py", "/workspace/my password is x y")
    (found,) = tracebacks(lines(odd))
    assert found.place == "module.py:1501"


@pytest.mark.parametrize(("ranks", "name"), [(1_500, "f"), (32, "f" * 16_000)])
def test_traceback__a_log_full_of_beginnings_takes_bounded_memory(ranks: int, name: str) -> None:
    finder, frame = TracebackFinder(), f'  File "/a.py", line 1, in {name}\n'

    def flood() -> Iterator[bytes]:
        for rank in range(ranks):
            head = f"[rank{rank}]: Traceback (most recent call last):\n"
            yield (head + f"[rank{rank}]: {frame}" * 20).encode()

    tracemalloc.start()
    for block in flood():
        assert list(finder.feed(block)) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (1 << 20) + 5 * 20 * len(frame)  # a block, and what is made of it


# --- what is reported


def test_container_logs__holds_no_text_of_the_log() -> None:
    shown = read(
        lines("loading with token hf_secret\nRuntimeError: CUDA out of memory. hf_secret"),
        lines(TRACEBACK, at="10:00:30"),
    )
    text = json.dumps(encode(shown))
    assert "secret" not in text
    assert "channels" not in text
    assert [finding.rule for finding in shown.findings] == ["cuda_out_of_memory", "python_error"]
    (traceback,) = shown.tracebacks
    assert traceback == LoggedTraceback(
        fingerprint=traceback.fingerprint,
        rule="python_error",
        domain="program",
        age_s=29.5,
        place="train.py:71",
        after_s=30.0,
        generic=True,
    )


CALLS, _, ERROR = TRACEBACK.rpartition("\n")
PRINTED = {
    "before it": ([cri("epoch 2 step 20", stream="stdout"), lines(TRACEBACK)], (20, 2)),
    "before it, and written in the midst of it": (
        [lines(CALLS), cri("step 20", stream="stdout"), cri(ERROR)], (20, 1),
    ),
    "before it, and written after it": (
        [lines(TRACEBACK), cri("epoch 2 step 20", stream="stdout")], (20, 2),
    ),
    "before it, and flushed when it ended": (
        [lines(TRACEBACK), cri("bye"), lines("step 18\nstep 19\nstep 20", stream="stdout", at="10:00:02")],
        (20, 1),
    ),
    "after it, for it was caught": (
        [lines(TRACEBACK), cri("step 20", stream="stdout", at="10:00:04")], (19, 1),
    ),
    "after it, through the same pipe": ([lines(TRACEBACK), cri("step 20")], (19, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("log", "printed"), PRINTED.values(), ids=PRINTED)
@pytest.mark.parametrize("at_once", [True, False], ids=["in one block", "in several"])
def test_container_logs__the_step_of_a_crash_is_the_last_that_was_printed(
    log: list[bytes], printed: tuple[int, int], at_once: bool
) -> None:
    earlier = cri("epoch 1 step 19", stream="stdout", at="09:59:59")
    shown = read(earlier + b"".join(log)) if at_once else read(earlier, *log)
    (found,) = shown.tracebacks
    assert (found.step, found.epoch) == printed


def test_container_logs__long_after_a_traceback_no_line_is_searched_for_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = ContainerLogReader("uid", "main", RULES)
    reader.feed(Chunk(0, lines(TRACEBACK)), NOW_S)
    reader.feed(Chunk(0, cri("calm", at="10:00:09")), NOW_S)
    searched: list[bytes] = []
    search = printed_steps.written_late

    def note(block: bytes, stream: str, raised_s: float, process: str) -> PrintedStep:
        searched.append(block)
        return search(block, stream, raised_s, process)

    monkeypatch.setattr(printed_steps, "written_late", note)
    reader.feed(Chunk(0, cri("step 20", stream="stdout", at="10:00:10")), NOW_S)
    assert searched == []
    reader.feed(Chunk(0, lines(TRACEBACK, at="10:00:20")), NOW_S)
    assert searched != []


def test_traceback__of_the_lines_amid_it_only_those_that_may_concern_it_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    parse = log_lines.parse

    def note(line: str) -> LogLine | None:
        parsed.append(line)
        return parse(line)

    monkeypatch.setattr(log_lines, "parse", note)
    noise = b"".join(
        cri(f"step {number} of a calm training", stream="stdout") for number in range(1000)
    )
    (found,) = tracebacks(lines(CALLS) + noise + cri(ERROR))
    assert (found.place, found.printed.step) == ("train.py:71", 999)
    assert len(parsed) < 100


def test_container_logs__a_restart_of_the_container_begins_anew() -> None:
    reader = ContainerLogReader("uid", "main", RULES)
    reader.feed(Chunk(0, lines(TRACEBACK), is_first=True), NOW_S)
    reader.feed(Chunk(1, cri("OSError: [Errno 28] No space left"), is_first=True), NOW_S)
    shown = reader.summary(NOW_S)
    assert shown is not None
    assert (shown.start, shown.tracebacks) == (1, ())
    assert [finding.rule for finding in shown.findings] == ["storage_full"]


def test_container_logs__what_is_long_ago_explains_nothing() -> None:
    reader = ContainerLogReader("uid", "main", RULES)
    reader.feed(Chunk(0, cri("OSError: [Errno 28] No space left")), NOW_S)
    assert reader.summary(NOW_S) is not None
    assert reader.summary(NOW_S + 3600) is None


def test_container_logs__tracebacks_of_an_earlier_failure_give_way() -> None:
    handled = TRACEBACK.replace("line 71", "line 5")
    shown = read(lines(handled), lines(TRACEBACK, at="10:00:50"), lines(TRACEBACK, at="10:00:51"))
    assert [traceback.place for traceback in shown.tracebacks] == ["train.py:71"]


def test_container_logs__a_generic_rule_comes_after_one_that_explains() -> None:
    shown = read(lines("ValueError: x\nucx: UCX  ERROR  no route\nTypeError: y"))
    assert [(finding.rule, finding.count) for finding in shown.findings] == [
        ("ucx_error", 1),
        ("python_error", 2),
    ]


# --- exit codes


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("code 137", "SIGKILL"),
        ("signal 9", "SIGKILL"),
        ("signal 11", "SIGSEGV"),
        ("code 127", "not found"),
        ("code 70", "internal error of kcover-ebpf"),
        (f"code {EXIT_SHUT_DOWN}", "kcover-ebpf run ended the job on a verdict"),
        ("code 124", "timeout"),
        ("signal 10", "SIGUSR1: a scheduler"),
        ("signal 12", "SIGUSR2: a scheduler"),
        ("signal 14", "SIGALRM"),
    ],
)
def test_container_logs__an_exit_code_is_explained(end: str, words: str) -> None:
    found = exit_codes.of_end(end)
    assert found is not None
    assert words in found.meaning


@pytest.mark.parametrize("end", ["", "code 77", "signal", "code -1", "code 99999999999", "left"])
def test_container_logs__an_exit_code_that_the_table_does_not_have(end: str) -> None:
    assert exit_codes.of_end(end) is None


def test_exit_codes__each_is_complete() -> None:
    assert exit_codes.table()
    for code, row in exit_codes.table().items():
        assert 0 <= code <= 255
        assert row.meaning
        assert row.advice
