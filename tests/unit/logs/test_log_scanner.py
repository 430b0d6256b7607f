"""The search for lines of all rules at once: it misses none that a rule matches."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kcover_ebpf.cli import entry
from kcover_ebpf.cli.logs import logs
from kcover_ebpf.devices.catalog import Catalog
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader
from kcover_ebpf.logs.rules import LogRule, compiled

CRI = "2026-11-22T10:00:00.123456789Z stderr F "
KMSG = "4,4711,99,-;"
PREFIXES = (CRI, KMSG, "", "[  123.456789] ", "Jan  5 18:28:55 node-7 kernel: ")
TEMPLATE = rules.shipped()[0]


def of_both_logs(pattern: str) -> tuple[LogRule, ...]:
    regex = compiled(pattern)
    return tuple(
        replace(TEMPLATE, pattern=pattern, regex=regex, source=source)
        for source in (Source.KERNEL, Source.CONTAINER)
    )


def numbers(reader: LogReader, block: bytes) -> list[int]:
    return [match.number for match in (*reader.feed(block), *reader.finish())]


def found(own: tuple[LogRule, ...], block: bytes) -> list[int]:
    return numbers(LogReader(own, Catalog({})), block)


class Unsearched(LogReader):
    """Tries each line, and each part of one."""

    def _candidates(self, block: bytes) -> Iterator[tuple[int, int]]:
        position = 0
        for part in re.split(rb"[\n\r]", block.removesuffix(b"\n")) if block else ():
            yield position, position + len(part)
            position += len(part) + 1


def wanted(own: tuple[LogRule, ...], block: bytes) -> list[int]:
    return numbers(Unsearched(own, Catalog({})), block)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("存储.*失败", "存储 gateway 失败"),
        ("Datenträger voll", "Datenträger voll"),
        ("^gateway lost|^quorum lost", "quorum lost"),
        ("(?i)^gateway lost", "Gateway lost"),
        (r"\Agateway (lost|gone)\z", "gateway gone"),
        ("((?:^|^not )a)$", "not a"),
        ("(?i)kelvin", "\N{KELVIN SIGN}elvin"),
        ("x.y", "xäy"),
        (r"\Qa^b$", "a^b$"),
        (r"^[]^$]+\p{^Greek}[[:alpha:]^$]$", "^]-$"),
        (r"^*lost\b", "lost"),
    ],
)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_log_reader__an_own_rule_matches_behind_every_prefix(
    pattern: str, text: str, prefix: str
) -> None:
    assert found(of_both_logs(pattern), f"calm\n{prefix}{text}\r\ncalm\n".encode()) == [2]


@pytest.mark.parametrize("pattern", ["", "^$", r"\B", "a*"])
def test_log_reader__a_rule_that_matches_nothing_at_all_invents_no_line(pattern: str) -> None:
    assert found(of_both_logs(pattern), b"a\n\n") == wanted(of_both_logs(pattern), b"a\n\n")


def test_log_reader__bytes_that_are_no_text_hide_no_line() -> None:
    assert found(of_both_logs("lost.*disk"), b"calm\nlost \xff\xe5\xad disk\n") == [2]


def test_log_reader__a_quotation_without_an_end_hides_no_other_rule() -> None:
    own = (*of_both_logs(r"\Qa|b"), *of_both_logs("lost"))
    assert found(own, b"lost\na|b\nb\n") == [1, 2]


PIECES = st.sampled_from(
    ["a", "b", "A", "ä", "存", "k", " ", "-", "^", "$", "]", ":", "\r", "lost", "λ", "\u212a"]
)
ATOMS = r"""
a b A ä 存 k lost . ^ $ \A \z \b \B \s \S \w \W \d \^ \$ \] \x{5b58} \pL \PL \p{Greek} \p{^Greek} \C
[^a] []a] [^]] [[:alpha:]] [^[:space:]b] [^$] [\]^] [äö] [^存] \Qa^\E \Q$ (?i) (?m) (?s)
"""
PATTERNS = st.recursive(
    st.sampled_from([*ATOMS.split(), " "]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.builds(
            "{}{}{}".format,
            st.sampled_from(["(", "(?:", "(?i:", "(?m:", "(?P<n>"]),
            inner,
            st.just(")"),
        ),
        st.builds("{}{}".format, inner, st.sampled_from(["*", "+", "?", "*?", "{2}"])),
    ),
    max_leaves=6,
)
BROKEN = st.sampled_from([b"", b"", b"\xff", b"\xe5\xad", b"\xe5"])
LINES = st.builds(
    lambda prefix, text, broken, rest: prefix.encode() + text.encode() + broken + rest.encode(),
    st.sampled_from(PREFIXES),
    st.lists(PIECES, max_size=4).map("".join),
    BROKEN,
    st.lists(PIECES, max_size=3).map("".join),
)


def is_valid(pattern: str) -> bool:
    try:
        compiled(pattern)
    except ValueError:
        return False
    return True


@given(
    patterns=st.lists(PATTERNS.filter(is_valid), min_size=1, max_size=3),
    block=st.lists(LINES, min_size=1, max_size=4).map(b"\n".join),
    end=st.sampled_from([b"\n", b"\r\n", b""]),
)
@example(patterns=[r"\Qa"], block=b"lost", end=b"\n")
@example(patterns=["a|."], block=b"4,4711,99,-;\n ", end=b"\n")
@example(patterns=["a|."], block=b"4,4711,99,-;\n ", end=b"")
@example(patterns=["a|"], block=b"\n a", end=b"\n")
@example(patterns=["a[^b]*ä", "^ä"], block=b"a\n\xe5\n" + "ä".encode(), end=b"")
def test_log_reader__what_a_rule_matches_the_search_of_all_rules_matches(
    patterns: list[str], block: bytes, end: bytes
) -> None:
    own = tuple(rule for pattern in patterns for rule in of_both_logs(pattern))
    assert found(own, block + end) == wanted(own, block + end)


TOO_MANY = [rf"{number}\pL{{100}}x" for number in range(100)]
"""Each compiles, and all together do not."""


@pytest.mark.parametrize("name", ["own.toml", "own.json"])
def test_load__rules_that_are_too_many_together_are_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name.endswith("toml"):
        head = "[[rule]]\nname='x'\ndomain='network'\nseverity='info'\n"
        path.write_text("".join(f"{head}pattern='{text}'\n" for text in TOO_MANY))
    else:
        own = [{"type": "temporary", "reason": "x", "pattern": text} for text in TOO_MANY]
        path.write_text(json.dumps({"rules": own}))
    with pytest.raises(
        PolicyError, match="cannot be searched together: pattern too large"
    ) as caught:
        rules.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("patterns", [["(存储"], TOO_MANY], ids=["one", "all together"])
def test_logs__rules_that_cannot_be_compiled_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patterns: list[str]
) -> None:
    path = tmp_path / "own.toml"
    head = "[[rule]]\nname='x'\ndomain='network'\nseverity='info'\n"
    path.write_text(
        "".join(f"{head}pattern='{pattern}'\n" for pattern in patterns), encoding="utf-8"
    )
    assert entry.call(logs, "kcover-ebpf", ["--rules", str(path), str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kcover-ebpf: log rules {path}")


@pytest.mark.parametrize("block", [b"\n a\n", b"4,4711,99,-;b\n\n a\n"])
def test_log_reader__an_indented_line_behind_a_blank_one_continues_nothing(block: bytes) -> None:
    assert found(of_both_logs("a$"), block) == [block.count(b"\n")]


@pytest.mark.parametrize("block", [b" \n", b"4,4711,99,-;\n \n \n"])
def test_log_reader__a_blank_line_says_nothing(block: bytes) -> None:
    assert found(of_both_logs("a|."), block) == []
