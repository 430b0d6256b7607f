"""Words that the project does not use: vague ones, an old dialect, what the field names otherwise (CONTRIBUTING.md)."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "tests/fuzz/corpus"
"""Bytes, whatever their files are called."""

# Words that stand for too many things; say reported, detected, distinguished, announced, inspection, sample.
VAGUE = re.compile(
    r"(?<![a-z])(told|tells|glance|glimpse|goes on(?! the)|stands still|closer look)(?![a-z])"
    r"|\bof its own(?![a-z]|\s[a-z])|\bpicture of (?:now|a|the) rank",
    re.IGNORECASE,
)

# Words for which the field has its own; those that machines read are left out of the text first.
BANNED = re.compile(
    r"(?<![a-z])(?:nobody|somebody|anybody|troubles?|rights|(?:come|comes|came|coming)[ _]back"
    r"|ke(?:ep|eps|pt)[ _-](?:\w+ )?out|lets?[ _](?:it[ _]|them[ _])?(?:back[ _])?in)(?![a-z])",
    re.IGNORECASE,
)

# "held" of a lock, a rank or a gang, "stand", "a word" of a reporter, and a restart method by its other names.
# That something else is held (a port, an invariant, a Lease) or stands for something is plain English.
GLOSSARY = re.compile(
    r"(?<![a-z])held[ _](?:by|through|as a whole|lock)"
    r"|(?<![a-z])(?:lock|mutex|rank|gang|job)s?[ _](?:that[ _])?(?:is|are|was|were|be)[ _](?:really[ _])?held(?![a-z])"
    r"|(?<![a-z])(?:stands?|stood|standing)(?![a-z])(?![ _-](?:for|by)(?![a-z]))"
    r"|(?<![a-z])(?:last|later|without a|half's|agent's) word(?![a-z])(?! of the command line)"
    r"|(?<![a-z])restart strateg|(?<![a-z])ways? (?:to|of) restart",
    re.IGNORECASE,
)

# Where restarts are decided, "way" is a method of restarting unless it is the plain word.
WAY = re.compile(r"(?<![a-z])ways?(?![a-z])(?! to the)", re.IGNORECASE)
RESTARTS = (
    "kcover_ebpf/recovery/",
    "kcover_ebpf/api/incident.py",
    "kcover_ebpf/api/fault_policy.py",
)
PLAIN_WAY = re.compile(
    r"under way|on (?:the|its) way|both ways"
    r"|\.ways?\b|^ +ways?: (?:tuple\[)?RestartMethod",  # fields of FaultPolicy and Incident
    re.MULTILINE,
)

READ_BY_MACHINES = re.compile(
    r"kcover\.io/kept-out-\w+|kept_out_(?:by|since|count)|nodes_kept_out"  # an annotation, JSON, a metric
    r"|(?<=[.\"'`])trouble\b|\btrouble(?=[=:.,])"  # a field of reports and tapes
    r'|"rights"|data that nobody sends'  # a feature of doctor in JSON, a state in reports
    r'|"held by a debugger"'  # a state in reports
    r"|SCM_RIGHTS"  # a constant of the kernel
)

# What the product calls a snapshot, an inspection, a sample or a pass; of people and screens the words are plain.
DIALECT = re.compile(r"\b(?:pictures?|looks? at|looked at|looking at|one look)\b", re.IGNORECASE)

# Elsewhere also within names, and of whatever is not plainly a resemblance or a search.
DIALECT_OF_TESTS = re.compile(
    r"(?<![a-z])(?:pictures?|looks?|looked|looking)(?![a-z])"
    r"(?![ _-](?:up|for|like|alike|the same))",
    re.IGNORECASE,
)

DIALECT_IS_BANNED = {
    "kcover_ebpf/": DIALECT,
    "tools/": DIALECT,
    "bench/": DIALECT,
    "testbed/": DIALECT,
    "tests/": DIALECT_OF_TESTS,
    "docs/": DIALECT_OF_TESTS,
    "charts/": DIALECT_OF_TESTS,
    "bpf/": DIALECT_OF_TESTS,
    "README.md": DIALECT_OF_TESTS,
}

MAY_USE_DIALECT = {
    "tests/unit/repository/test_house_words.py": "this test",
    "tests/unit/tapes/test_tapes.py": "the name of a mark on a tape",
    "docs/tapes.md": "the name of a mark on a tape",
    "bench/demo/incidents_picture.py": "an image of a terminal",
    "bench/demo/picture": "an image of a terminal",
    "bench/demo/svg.py": "an image of a terminal",
    "bench/demo/trace_picture.py": "an image of a terminal",
}

TEXTS = {
    ".py",
    ".c",
    ".h",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".tpl",
    ".txt",
    ".css",
    "",
}

MAY_NAME_THEM = {
    "CONTRIBUTING.md": "the glossary, which says what to write in their place",
    "tests/unit/repository/test_house_words.py": "this test",
    "CHANGELOG.md": "a column and a field by their old names",
    "LICENSE": "not ours",
    "LICENSES/Apache-2.0.txt": "not ours",
    "LICENSES/GPL-2.0-only.txt": "not ours",
    "bench/faultbench/scenario.py": "a value in recorded results",
}


def vague_words(text: str) -> list[str]:
    ours = READ_BY_MACHINES.sub("", text)
    return [found.group() for rule in (VAGUE, BANNED, GLOSSARY) for found in rule.finditer(ours)]


def texts() -> Iterator[tuple[str, str]]:
    """Name and content of each text file of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.rstrip("\0").split("\0"):
        path = ROOT / name
        if path.suffix in TEXTS and path.is_file() and not path.is_relative_to(CORPUS):
            yield name, path.read_text()


def test_vague_words__they_do_not_occur() -> None:
    found = {name: words for name, text in texts() if (words := vague_words(text))}
    assert found.keys() - MAY_NAME_THEM.keys() == set()


def test_dialect__its_words_do_not_occur() -> None:
    found = {
        name: words
        for name, text in texts()
        for tree, rule in DIALECT_IS_BANNED.items()
        if name.startswith(tree) and (words := rule.findall(text))
    }
    assert found.keys() - MAY_USE_DIALECT.keys() == set()
    assert found.keys() >= MAY_USE_DIALECT.keys(), "an exemption is used"


def test_restarts__a_way_of_restarting_is_a_method() -> None:
    found = {
        name: words
        for name, text in texts()
        if name.startswith(RESTARTS) and (words := WAY.findall(PLAIN_WAY.sub("", text)))
    }
    assert found == {}


def test_plain_way__a_field_and_the_plain_word_remain() -> None:
    text = "a way\n    ways: tuple[RestartMethod, ...]\n x.way; a stop under way, another_way"
    assert WAY.findall(PLAIN_WAY.sub("", text)) == ["way", "way"]


def test_dialect_of_tests__a_word_in_a_sentence_and_in_a_name() -> None:
    text = (
        "Looks at it: a_look_lasts, pictures. It looks like a pod, is looked_up, outlook, pictured."
    )
    assert DIALECT_OF_TESTS.findall(text) == ["Looks", "look", "pictures"]


def test_texts__of_every_part_of_the_repository() -> None:
    parts = {name.partition("/")[0] for name, _ in texts()}
    assert parts >= {"kcover_ebpf", "tests", "tools", "bpf", "docs", "charts", "README.md"}


def test_vague_words__the_rule_sees_one_in_a_sentence_and_in_a_name() -> None:
    assert vague_words("Who is Told? self._told(told_s)") == ["Told", "told", "told"]
    assert vague_words("untold, retells, glances, reported") == []
    assert vague_words("it goes on in a pod of its own.") == ["goes on", "of its own"]
    assert vague_words("the label goes on the pods of its own node") == []
    assert vague_words("nobody_keeps it out: it comes back") == [
        "nobody",
        "keeps it out",
        "comes back",
    ]
    assert vague_words('a.trouble, "rights", nodes_kept_out') == [], "what machines read"
    assert vague_words("a mutex held by thread 7; its locks are held; it stands there") == [
        "held by",
        "locks are held",
        "stands",
    ]
    assert vague_words("without a word; two ways to restart it") == [
        "without a word",
        "ways to restart",
    ]
    assert vague_words("All invariants held; held out; it stands for others, a stand-by") == []
