"""Each shipped log rule on lines that real programs print, and on lines that quote what a tenant chose."""

from collections.abc import Iterator

import pytest
import re2

from kcover_ebpf.devices.catalog.files import shipped as catalog
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader, Match
from kcover_ebpf.logs.rules import Concerns, Severity
from tests.unit.support.log_corpus import CORPUS, ROWS

NEAR_MISSES = [(Source(row["log"]), row["text"], row.get("rule")) for row in CORPUS["near_misses"]]
XIDS = ("xid_", "sxid_")
"""How the names begin that the catalogue gives."""

NODE_RULES = [
    rule
    for rule in rules.shipped()
    if rule.source is Source.KERNEL and rule.lasting and rule.concerns is Concerns.NODE
]
NODE_RULE_NAMES = {rule.name for rule in NODE_RULES}
NODE_LINES = [
    *{rule: text for _, text, rule in ROWS if rule in NODE_RULE_NAMES}.values(),
    *(text for _, text, rule in ROWS if rule.startswith(XIDS)),
]
"""One of each rule, and those with an Xid: what is tried with each of their pieces takes long."""
NAME_CHARACTERS = 15
"""Of a process's name (TASK_COMM_LEN less its end)."""
# Names that a line's own words would complete, were a pattern loose.
CHOSEN_NAMES = [
    "NVRM: GSP RPC",
    "NVRM: GSP task",
    "NVRM: GSP-RM ",
    "NVRM: _kgsp",
    "NVRM: GSP error",
    "GPU0 crash dump",
    "XFS (a): ",
    "XFS (a) ",
    "XFS Corruption",
    "EXT4-fs error ",
    "EXT4-fs error (",
    "md/raid1:md0: ",
    "mlx5_core a: ",
    "Oops: 0002 [#1]",
    "Oops: ",
    "Kernel panic",
    "Kernel panic - ",
    "kernel BUG at a",
    "a 0:: AER: ",
    "kernel: XFS (a)",
    "NVRM: Xid (): 7",
    "NVRM: Xid (a): ",
    "NVRM: Xid (",
    "{1}[Hardware E",
    "divide error: 0",
    "",
]
# Where the kernel prints the name of a process.
NAMES_IN_LINES = [
    "NAME[123]: segfault at 0 ip 0000000000401136 sp 00007ffd0c0ffee0 error 4 in libc.so.6[7f7c7ac00000+195000]",
    "traps: NAME[123] general protection fault ip:401136 sp:7ffd0c0ffee0 error:0 in x[400000+1000]",
    "NAME[123]: unhandled exception: ESR 0x0000000092000005, level 1 translation fault in x[400000+1000]",
    "NAME[123]: memfd_create() called without MFD_EXEC or MFD_NOEXEC_SEAL set",
    "CPU: 3 PID: 12 Comm: NAME Not tainted 6.1.0 #1",
    "NAME invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "[    123]  1000   123    21041    18000   204800        0           0 NAME",
    "Memory cgroup out of memory: Killed process 123 (NAME) total-vm:84164kB, anon-rss:71000kB, file-rss:920kB",
    "NAME: attempt to access beyond end",
    "NAME: page allocation failure: order:0, mode:0xcc0(GFP_KERNEL)",
    "NAME (123): drop_caches: 3",
    "INFO: task NAME:12 blocked for more than 120 seconds.",
    "task:NAME state:D stack:0 pid:12 ppid:1 flags:0x00000004",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 27s! [NAME:12]",
    "warning: `NAME' uses 32-bit capabilities (legacy support in use)",
    "EXT4-fs warning (device sda1): ext4_dirblock_csum_verify:404: inode #2: comm NAME: No space.",
    "NVRM: Xid (PCI:0000:5d:00): 9999, pid=12, name=NAME, Ch 00000008",
    "IPv6: ADDRCONF(NETDEV_CHANGE): NAME: link becomes ready",
]
# Where it prints a whole text that a tenant chose: the name of a file or of a cgroup, a mount option.
TEXTS_IN_LINES = [
    "x[123]: segfault at 0 ip 0000000000401136 sp 00007ffd0c0ffee0 error 4 in TEXT[400000+1000]",
    "traps: x[123] general protection fault ip:401136 sp:7ffd0c0ffee0 error:0 in TEXT[400000+1000]",
    "x[123]: unhandled exception: ESR 0x0000000092000005, level 1 translation fault in TEXT[400000+1000]",
    "process 'TEXT' started with executable stack",
    "tmpfs: Unknown parameter 'TEXT'",
    "cgroup: fork rejected by pids controller in /kubepods/pod1/TEXT",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/TEXT,task=x,pid=12,uid=0",
]
# Where it prints the name of a process and that of its program's file.
BOTH_IN_A_LINE = [
    "NAME[123]: segfault at 0 ip 0000000000401136 sp 00007ffd0c0ffee0 error 4 in TEXT[400000+1000]",
    "NAME[123]: unhandled exception: ESR 0x0000000092000005, level 1 translation fault in TEXT[400000+1000]",
    "NAME[123] bad frame in rt_sigreturn frame:0000000000001000 ip:401136 sp:1000 orax:f in TEXT[400000+1000]",
]


def read(source: Source, text: str) -> list[Match]:
    reader = LogReader(rules.shipped(), catalog(), source=source)
    return [*reader.feed(text.encode()), *reader.finish()]


def lasting_of_the_node(lines: list[str]) -> list[str]:
    """Those of the lines that would fail an inspection of the node."""
    found = read(Source.KERNEL, "\n".join(lines))
    return [match.line for match in found if match.lasting and match.concerns is Concerns.NODE]


def windows(line: str) -> Iterator[str]:
    """Every name that is a piece of the line, and those that are its beginning."""
    for start in range(max(1, len(line) - NAME_CHARACTERS + 1)):
        yield line[start : start + NAME_CHARACTERS]
    for end in range(1, NAME_CHARACTERS):
        yield line[:end]


@pytest.mark.parametrize(("log", "text", "rule"), ROWS, ids=lambda value: str(value)[:40])
def test_log_corpus__line_of_a_real_program_is_recognised(
    log: Source, text: str, rule: str
) -> None:
    prefix = "[  123.456789] " if log is Source.KERNEL else ""
    for line in (text, prefix + text):
        assert [match.rule for match in read(log, line)] == [rule]


@pytest.mark.parametrize(("log", "text", "rule"), NEAR_MISSES, ids=lambda value: str(value)[:40])
def test_log_corpus__line_that_only_resembles_one_is_not_taken_for_it(
    log: Source, text: str, rule: str | None
) -> None:
    found = [match.rule for match in read(log, text)]
    assert rule not in found
    assert rule is not None or found == []


@pytest.mark.parametrize("row", CORPUS["mild"], ids=lambda row: str(row["text"])[:40])
def test_log_corpus__what_its_writer_does_without_is_a_warning_at_most(row: dict[str, str]) -> None:
    found = read(Source(row["log"]), row["text"])
    assert [match for match in found if match.severity in (Severity.ERROR, Severity.FATAL)] == []
    assert [match for match in found if match.lasting or match.concerns is Concerns.NODE] == []


@pytest.mark.parametrize("row", CORPUS["quiet"], ids=lambda row: str(row["text"])[:40])
def test_log_corpus__what_did_not_happen_is_information_at_most(row: dict[str, str]) -> None:
    found = read(Source(row["log"]), row["text"])
    assert [match for match in found if match.severity is not Severity.INFO] == []


@pytest.mark.parametrize("row", CORPUS["forms"], ids=lambda row: str(row["source"]))
def test_log_corpus__the_kernels_log_is_read_as_tools_hand_it_on(row: dict[str, str]) -> None:
    assert [match.rule for match in read(Source(row["log"]), row["text"])] == [row["rule"]]


def test_log_corpus__has_many_facts_and_many_that_are_harmless() -> None:
    harmless = {
        row["text"]
        for part in ("near_misses", "mild", "quiet")
        for row in CORPUS[part]
        if row.get("rule") is None
    }
    assert len({text for _, text, _ in ROWS}) >= 400
    assert len(harmless) >= 100


def test_log_corpus__each_has_an_example_and_each_example_a_rule() -> None:
    names = {rule.name for rule in rules.shipped()}
    assert len(names) == len(rules.shipped())
    shown = {rule for _, _, rule in ROWS if not rule.startswith(XIDS)}
    assert shown == names
    counter_examples = {row.get("rule") or row.get("like") for row in CORPUS["near_misses"]}
    assert counter_examples - {None} == names
    rows = [
        row
        for log in ("kernel", "container", "near_misses", "mild", "quiet", "forms")
        for row in CORPUS[log]
    ]
    assert [row["text"] for row in rows if not row["source"]] == []


def test_log_corpus__whatever_gpud_or_npd_recognise_is_recognised() -> None:
    rows = [row for row in CORPUS["kernel"] if "peer" in row]
    theirs = {f"{peer} {name}" for peer, names in CORPUS["peers"].items() for name in names}
    assert {row["peer"] for row in rows} == theirs
    assert [row["text"] for row in rows if not read(Source.KERNEL, row["text"])] == []


def test_node_rules__each_begins_where_the_line_does() -> None:
    assert [rule.name for rule in NODE_RULES if not rule.pattern.startswith("^")] == []
    # any other ^ would not be found behind the time that a log puts in front
    inner = [rule.name for rule in NODE_RULES if "^" in rule.pattern[1:].replace("[^", "")]
    assert inner == []


def test_node_rules__none_matches_for_the_name_of_a_process() -> None:
    names = sorted({*CHOSEN_NAMES, *(name for line in NODE_LINES for name in windows(line))})
    assert len(names) > 1000
    lines = [template.replace("NAME", name) for template in NAMES_IN_LINES for name in names]
    patterns = re2.Set.SearchSet()
    for rule in NODE_RULES:
        patterns.Add(rule.pattern)
    patterns.Compile()
    assert [line for line in lines if patterns.Match(line)] == []
    assert lasting_of_the_node(lines) == []


def test_node_rules__none_matches_for_a_text_that_a_tenant_chose() -> None:
    texts = [line.replace("/", "_") for line in NODE_LINES]
    lines = [template.replace("TEXT", text) for template in TEXTS_IN_LINES for text in texts]
    lines += [
        template.replace("NAME", text[:split]).replace("TEXT", rest)
        for template in BOTH_IN_A_LINE
        for text in texts
        for split in range(1, NAME_CHARACTERS + 1)
        for rest in (text, text[split:])
    ]
    assert lasting_of_the_node(lines) == []
