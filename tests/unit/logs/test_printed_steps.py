"""The step of a training in the lines of a container's log."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.api import rfc3339
from kcover_ebpf.logs import printed_steps
from kcover_ebpf.logs.printed_steps import PrintedStep


def cri(text: str, *, at: int, stream: str) -> bytes:
    return f"2026-11-22T10:00:0{at}.5Z {stream} F {text}\n".encode()


TEXTS = st.sampled_from(
    (
        "calm", "step 7", "Step: [8/90]", "step=1.5", "stepping 4", "batch 0.1 s", "epoch 3", "Epoch=[4] iter 5",
        'x "step": 6, "epoch": 2', " 12%| 12/100 [00:01<00:09]", "step", "9", "step 12345678901234567", "epoch 1.",
        "global_step\v 3 ", "\xe9 train-iteration 4\r", "stdout F step 3", "stderr F epoch 9",
    )
)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(("stdout", "stderr")), TEXTS), max_size=400
    ),
    st.integers(0, 9),
    st.sampled_from(("stdout", "stderr", "")),
)
def test_printed_steps__the_last_that_was_written_late_is_that_of_reading_each_line(
    written: list[tuple[int, str, str]], raised: int, stream: str
) -> None:
    written.sort(key=lambda pair: pair[0])
    block = b"".join(cri(text, at=at, stream=by) for at, by, text in written)
    expected = PrintedStep(None, None)
    for at, by, text in written:
        if stream and by != stream and 0 <= at - raised <= 3:
            expected = expected.then(printed_steps.last(text.encode()))
    raised_s = rfc3339.from_text(f"2026-11-22T10:00:0{raised}.5Z")
    assert printed_steps.written_late(block, stream, raised_s) == expected


def test_printed_steps__of_many_the_last_ones_are_found_however_long_ago_they_were_printed() -> (
    None
):
    calm = cri("calm", at=2, stream="stdout") * 1000
    block = cri("epoch 3 step 1", at=1, stream="stdout") + calm
    block += (
        cri("step 2", at=2, stream="stdout") + calm + cri("step 3", at=9, stream="stdout") * 1000
    )
    raised_s = rfc3339.from_text("2026-11-22T10:00:00Z")
    assert printed_steps.written_late(block, "stderr", raised_s) == PrintedStep(2, 3)
    assert printed_steps.written_late(block, "stdout", raised_s) == PrintedStep(None, None)


def test_last__a_line_of_blanks_takes_linear_time() -> None:
    began_s = time.process_time()
    for name in (b"step", b"epoch"):
        assert printed_steps.last(name + b" " * (32 << 10)) == PrintedStep(None, None)
    assert time.process_time() - began_s < 0.1, "2,000 blanks took 24 s"
