"""Classifying lines of kernel and container logs: rules, prefixes, forged lines, operators' files."""

import json
import select
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kcover_ebpf.cli.logs import logs
from kcover_ebpf.devices.catalog.files import shipped as catalog
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.logs import lines, rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader, Match

CRI = "2026-11-22T10:00:00.123456789Z stderr F "


def classify(text: str, *, source: Source = Source.UNKNOWN) -> list[Match]:
    reader = LogReader(rules.shipped(), catalog(), source=source)
    return [*reader.feed(text.encode()), *reader.finish()]


def names(text: str, *, source: Source = Source.UNKNOWN) -> list[str]:
    return [match.rule for match in classify(text, source=source)]


LOCKUP = "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]"


@pytest.mark.parametrize(
    "forged",
    [
        f"{CRI}{LOCKUP}",
        f"user  :notice: [Sun Jan  5 18:28:55 2025] {LOCKUP}",
        f"12,4711,99,-;{LOCKUP}",
    ],
    ids=["in a container's log", "by user space, dmesg -x", "by user space, /dev/kmsg"],
)
def test_logs__kernel_line_that_user_space_wrote_is_refused(forged: str) -> None:
    assert names(forged) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[  123.456789] ",
        "[  123.456789][  T77] ",
        "[Sun Jan  5 18:28:55 2025] ",
        "kern  :warn  : [Sun Jan  5 18:28:55 2025] ",
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ",
        "Jan  5 18:28:55 node-7 kernel: ",
        "Jan  5 18:28:55 node-7 kernel: [  123.456789] ",
        "Jan 05 18:28:55.123456 node-7 kernel: ",
        "Sun 2025-01-05 18:28:55 CET node-7 kernel: ",
        "2025-01-05T18:28:55+0100 node-7 kernel: ",
        "2025-01-21T04:41:44,285060+00:00 ",
        "[  123.456789 <    0.000012>] ",
        "[Jan 5 18:28] ",
        "[  +0.000012] ",
        "4,4711,99,-;",
    ],
)
def test_logs__prefix_of_a_kernel_log_is_taken_off(prefix: str) -> None:
    (match,) = classify(prefix + LOCKUP, source=Source.KERNEL)
    assert (match.line, match.rule) == (LOCKUP, "soft_lockup")


def test_logs__bare_line_belongs_to_the_log_that_the_caller_names() -> None:
    assert names(LOCKUP, source=Source.CONTAINER) == []
    assert names("ValueError: x", source=Source.KERNEL) == []


def test_match__says_the_number_of_its_line() -> None:
    text = "a\nb\n" + LOCKUP + "\nc\n" + LOCKUP
    assert [match.number for match in classify(text)] == [3, 5]


def test_match__of_a_line_that_is_repeated_has_its_own_number_and_time() -> None:
    times = [f"2026-11-22T10:00:{second:02d}.5Z" for second in range(40)]
    text = "".join(
        f"{time} stderr F [rank{index % 20}]: MemoryError: {index % 3}\n"
        for index, time in enumerate(times)
    )
    found = classify(text)
    assert [match.time for match in found] == times
    assert [match.number for match in found] == list(range(1, 41))
    assert [match.rank for match in found] == [index % 20 for index in range(40)]
    assert [match.line for match in found] == [f"MemoryError: {index % 3}" for index in range(40)]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
@example(cuts=[3, 3, 90])
def test_reader__does_not_mind_where_blocks_are_cut(cuts: list[int]) -> None:
    text = f"x\n{LOCKUP}\r\n{CRI}ValueError: y\n\n{CRI}MemoryError\n".encode()
    reader = LogReader(rules.shipped(), catalog())
    found: list[Match] = []
    start = 0
    for cut in [*sorted(cuts), len(text)]:
        found += reader.feed(text[start:cut])
        start = max(start, min(cut, len(text)))
    found += reader.finish()
    assert [(match.number, match.rule) for match in found] == [
        (2, "soft_lockup"),
        (3, "python_error"),
        (5, "host_out_of_memory"),
    ]


def test_logs__line_without_an_end_takes_bounded_memory() -> None:
    reader = LogReader(rules.shipped(), catalog())
    tracemalloc.start()
    for _ in range(64):
        assert list(reader.feed(b"x" * (1 << 16))) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept <= 1 << 17
    assert [match.number for match in reader.feed(f"\n{LOCKUP}\n".encode())] == [2]


@given(st.binary(max_size=400))
@example(b"\xff\n" + LOCKUP.encode())
def test_reader__takes_any_bytes(data: bytes) -> None:
    reader = LogReader(rules.shipped(), catalog())
    found = [*reader.feed(data), *reader.finish()]
    assert len(found) >= data.count(LOCKUP.encode())
    assert all(1 <= match.number <= data.count(b"\n") + 1 for match in found)


@given(st.text(max_size=200))
def test_parse__takes_any_text(text: str) -> None:
    line = lines.parse(text)
    assert line is None or text.endswith(line.text)


def test_logs__own_rules_come_first(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[rule]]\nname = "ours"\npattern = "soft lockup"\ndomain = "hardware"\nseverity = "fatal"\n'
        'concerns = "node"\nadvice = "call us"\n'
    )
    reader = LogReader(rules.load(path), catalog())
    (match,) = reader.feed(f"{LOCKUP}\n".encode())
    assert (match.rule, match.advice, match.severity) == ("ours", "call us", "fatal")


def test_logs__rules_of_node_problem_detector_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel-monitor.json"
    monitor = {
        "plugin": "kmsg",
        "rules": [
            {"type": "temporary", "reason": "Odd", "pattern": r"odd thing \d+"},
            {
                "type": "permanent",
                "condition": "Broken",
                "reason": "Very",
                "pattern": "very broken",
            },
        ],
    }
    path.write_text(json.dumps(monitor))
    reader = LogReader(rules.load(path), catalog(), source=Source.KERNEL)
    found = [*reader.feed(b"odd thing 7\nit is very broken\n")]
    assert [(match.rule, match.lasting) for match in found] == [("Odd", False), ("Very", True)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "rule = 1", "no list of rules"),
        ("a.toml", "[[rule]]\nname = 'x'", "rule 1: needs pattern"),
        ("a.toml", "x = ", "cannot be parsed"),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='(?=a)'\ndomain='network'\nseverity='info'",
            "rule 1: pattern",
        ),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='a'\ndomain='net'\nseverity='info'",
            "domain 'net' is not one of hardware, ",
        ),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='a'\ndomain='network'\nseverity='info'\nhue=1",
            "unknown key 'hue'",
        ),
        ("a.json", "[1]", "no list of rules"),
        ("a.json", '{"rules": [{"type": "temporary"}]}', "rule 1: needs reason"),
        ("a.json", "{", "cannot be parsed"),
        ("a.json", '{"plugin": "custom", "rules": [{"path": "x"}]}', "custom plugin monitor"),
    ],
)
def test_logs__bad_rules_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        rules.load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_logs__rules_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read log rules"):
        rules.load(tmp_path / "none.toml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_logs__rules_of_any_text_are_read_or_refused(tmp_path: Path, text: str) -> None:
    for path in (tmp_path / "any.toml", tmp_path / "any.json"):
        path.write_text(text)
        try:
            assert rules.load(path)[-1] == rules.shipped()[-1]
        except PolicyError:
            continue


def test_logs__command_prints_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"x\n{LOCKUP}\n{CRI}ValueError: \x1b[31mred\n")
    done = CliRunner().invoke(logs, [str(path), "-o", "json"])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert [(item["number"], item["rule"], item["domain"]) for item in found] == [
        (2, "soft_lockup", "driver"),
        (3, "python_error", "program"),
    ]
    assert {"line", "severity", "advice"} <= set(found[0])
    assert "\x1b" not in done.stdout


def test_logs__command_reads_standard_input_and_prints_text() -> None:
    done = CliRunner().invoke(logs, ["-"], input=f"{CRI}ValueError: \x1b[31mred\n")
    assert done.exit_code == 0
    assert done.stdout.startswith("1: error program python_error (job)\n")
    assert "\x1b" not in done.stdout


def test_logs__a_line_of_a_pipe_is_explained_while_the_pipe_is_open() -> None:
    code = "from kcover_ebpf.cli import main; main(['logs', '-'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("[    1.0] NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off\n")
        program.stdin.flush()
        found, _, _ = select.select([program.stdout], [], [], 30.0)
        program.stdin.close()
        assert found
        assert "xid_79" in program.stdout.read()
