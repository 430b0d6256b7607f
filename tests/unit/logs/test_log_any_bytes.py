"""Any bytes are made into lines, wherever blocks are cut, and no text takes more than linear time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.logs import lines, rules
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.normal import NormalLines, normal

TIME = "2026-11-28T10:00:00.5Z"
NOW_S = 1_795_860_060.0
MARK = "Traceback (most recent call last):"
FRAME = '  File "/app/train.py", line 42, in <module>'


ODD = st.sampled_from(
    [
        "\r", "\n", "\r\n", "\x1b[31m", "\x1b[", "\0", "{", '{"', '"}', "\\n", "[rank1]: ", "3: ",
        '{"log":"a\\n","stream":"stdout","time":"2026-11-28T10:00:00Z"}\n',
        '{"log":"part","stream":"stdout","time":"2026-11-28T10:00:00Z"}\n',
        '{"level":"error","msg":"a\\nb"}\n', f"{TIME} stderr F ", f"{TIME} stderr P ", "MESSAGE=x\n",
        "__CURSOR=a\n", "MESSAGE\n\x03\0\0\0\0\0\0\0a\nb\n", "\n\n", "x", "ä", "  | ", " 42%|##| 1/2 [00:01<00:02]",
    ]
)  # fmt: skip


@given(
    parts=st.lists(st.one_of(ODD, st.text(max_size=5)), max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    mark=st.sampled_from([b"", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b"__CURSOR=x\n"]),
)
@example(parts=["a\r", "\nb"], cuts=[2], mark=b"")
@example(parts=["ab\n"], cuts=[1], mark=b"\xff\xfe")
def test_normal__where_blocks_are_cut_changes_nothing(
    parts: list[str], cuts: list[int], mark: bytes
) -> None:
    data = mark + "".join(parts).encode("utf-8", "replace")
    cut, made, position = NormalLines(), b"", 0
    for end in [*sorted(cuts), len(data)]:
        if end > position:
            made += cut.feed(data[position:end])
            position = end
    assert made + cut.finish() == normal(data)


@given(st.lists(st.one_of(ODD, st.text(max_size=5)), max_size=20))
def test_normal__lines_keep_their_numbers_and_lose_what_is_no_text(parts: list[str]) -> None:
    data = "".join(parts).encode("utf-8", "replace")
    made = normal(data)
    if not data.startswith((b"__CURSOR=", b"\xff\xfe", b"\xfe\xff")):
        ended = data if data.endswith(b"\n") or not data.replace(b"\0", b"") else data + b"\n"
        assert abs(made.count(b"\n") - ended.count(b"\n")) <= 2
        assert made[: len(made)].count(b"\n") >= data.count(b"\n")
    assert b"\0" not in made
    assert b"\x1b[31m" not in made


@given(st.text(max_size=300))
def test_parse__any_text_has_a_message_that_is_its_end(text: str) -> None:
    line = lines.parse(text)
    assert line is None or line.written.endswith(line.text) or '{"' in text


HOSTILE: dict[str, Callable[[int], str]] = {
    "blanks": lambda n: " " * n,
    "brackets": lambda n: "[" * n,
    "ranks": lambda n: "[rank1]: " * (n // 9),
    "times": lambda n: "10:00:00 " * (n // 9),
    "levels": lambda n: "ERROR: " * (n // 7),
    "words": lambda n: "a" * n,
    "hosts": lambda n: "a-" * (n // 2) + ": ",
    "digits": lambda n: "1" * n,
    "escapes": lambda n: "\x1b[" * (n // 2),
    "a colour without end": lambda n: "\x1b[" + "0;" * (n // 2),
    "titles": lambda n: "\x1b]" * (n // 2),
    "returns": lambda n: "\r" * n,
    "a bar": lambda n: "x\r" * (n // 2),
    "half a bar": lambda n: "9%|" * (n // 3),
    "objects": lambda n: '{"a":' * (n // 5),
    "a string without end": lambda n: '{"' + "\\n" * (n // 2),
    "nested lists": lambda n: '{"msg":' + "[" * n + "}",
    "steps": lambda n: "step" + " " * n,
    "frames": lambda n: '  File "' * (n // 8),
    "margins": lambda n: "  | " * (n // 4),
    "attempts": lambda n: "attempt " * (n // 8),
    "Docker": lambda n: '{"log":"' * (n // 8),
    "priorities": lambda n: "<3>" * (n // 3),
    "names": lambda n: "a.b:c" * (n // 5),
}
_BYTES = 31_000
_LIMIT_S = 2.0
"""Of CPU for ten lines of 31 KB, each inside a traceback; a line that takes quadratic time needs minutes."""


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_log_any_bytes__no_text_takes_more_than_linear_time(make: Callable[[int], str]) -> None:
    reader = ContainerLogReader(
        "uid",
        "main",
        [rule for rule in rules.shipped() if rule.source is Source.CONTAINER],
    )
    text = make(_BYTES)
    log = "".join(
        f"{TIME} stderr F {MARK}\n{TIME} stderr F {FRAME}\n{TIME} stdout F {text}\n"
        f"{TIME} stderr F {text} RuntimeError: CUDA out of memory\n"
        for _ in range(10)
    ).encode()
    began_s = time.process_time()
    for at in range(0, len(log), 128 << 10):
        reader.feed(Chunk(0, log[at : at + (128 << 10)]), NOW_S)
    reader.summary(NOW_S)
    assert time.process_time() - began_s < _LIMIT_S
