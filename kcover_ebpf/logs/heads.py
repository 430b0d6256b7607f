"""Removes what launchers, loggers and shippers put in front of a message, in any order and number.

Pure. Each form is that of a program: PyTorch `[rank3]: `, torchrun --tee `[default0]:`, srun -l `3: `, Open MPI
`[1,3]<stderr>:`, Horovod `[3]<stderr>:`, MPICH -l `[3] `, pdsh and DeepSpeed `worker-1: `, Ray and vLLM `(Actor
pid=7)`, kubectl logs --prefix `[pod/trainer-0/main] `, Docker Compose `trainer-1 | `, and the records of Python's
logging, loguru, glog, absl, c10d, Ray's core, Ascend, NeMo and Hugging Face. The part that names a process is kept,
because lines of one process belong together; times are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.logs import levels
from kcover_ebpf.logs.levels import LogLevel

_MOST_ITEMS = 12
_LEVELS = "TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|ERR|FATAL|CRITICAL|SEVERE"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9}){0,2}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/]\d\d(?:[-/]\d\d)?|[A-Z][a-z]{2} {1,2}\d{1,2}(?: \d{4})?)"
)
_TIME = rf"(?:{_DATE}[-T ,_])?{_CLOCK}"
_FILE = r"[\w./<>-]{1,160}:\d{1,7}(?::[\w<>.]{1,80})?"
_END = r"(?: {0,12}(?:\|{1,2}|-|>>|::?)(?: |$)| |$)"
"""Between two items: a separator with its blanks, or one blank. Further blanks are indentation of
the message."""

ITEMS = {
    "rank": r"\[rank(?P<n_rank>\d{1,7})\]: ?",
    "mpi": r"\[[^\]\s]{0,80}?\d{1,7},(?P<n_mpi>\d{1,7})\]<std(?:err|out|diag)>: ?",
    "horovod": r"\[(?P<n_horovod>\d{1,7})\]<std(?:err|out)>: ?",
    "hydra": r"\[(?P<n_hydra>\d{1,7})\]: ?",
    "mpich": r"\[\d{1,7}\] ",
    "srun": r" {0,7}(?P<n_srun>\d{1,7}): ",
    "c10d": r"\[(?P<l_c10d>[VDIWEFC])(?:\d{1,4} [\d:.]{8,20})?(?: {1,8}\d{1,10})? [\w./-]{1,160}:\d{1,7}\] ?",
    "nemo": rf"\[NeMo (?P<l_nemo>[DIWEF]) {_TIME} (?:rank:? ?\d{{1,7}} )?[\w./-]{{1,160}}:\d{{1,7}}\] ?",
    "raycore": rf"\[{_TIME} (?P<l_ray>[DIWEFC]) \d{{1,10}} \d{{1,10}}\] ?",
    "sglang": rf"\[{_TIME}(?P<w_sglang>(?: [A-Z]{{2,4}}\d{{1,5}}){{1,4}})\] ?",
    "hugging": rf"\[(?P<l_hugging>{_LEVELS})\|[\w./-]{{1,160}}:\d{{1,7}}\] ?(?:{_TIME} >> ?)?",
    "role": r"\[[A-Za-z][\w.-]{0,60}?\d{1,7}\]:",
    "actor": r"\([\w.:<>\[\]-]{0,100} ?pid=\d{1,10}[^)\n]{0,160}\) ?",
    "component": r"\((?:raylet|gcs_server|autoscaler|dashboard|scheduler|MainThread|MainProcess)[^)\n]{0,60}\) ?",
    "ascend": r"\(PID:\d{1,10}(?:, Device:-?\d{1,6})?(?:, RankID:(?P<n_ascend>-?\d{1,7}))?\) ?",
    "pod": r"\[(?:pod/)?[a-z0-9][a-z0-9.-]{0,253}(?:/[a-z0-9-]{1,63}){1,2}\] ",
    "ident": r"[0-9a-f]{6,64} \|\| ",
    "compose": r"[a-z0-9][\w.-]{0,80} {1,24}\| ",
    "glog": r"(?P<l_glog>[VDIWEF])\d{4} \d\d:\d\d:\d\d[.\d]{0,10} {1,8}\d{1,10} [\w./<>-]{1,240}:\d{1,7}\] ?",
    "tensorflow": r"(?P<l_tf>[VDIWEF]) [\w./-]{1,240}:\d{1,7}\] ?",
    "thread": rf"[\[(](?:tid|pid|thread)[ =:]\d{{1,10}}[\])]{_END}",
    "bar": r"(?:[^|\[\n]{0,80}:)? {0,4}\d{1,3}%\|[^|\n]{0,400}\|[^\[\n]{0,60}\[[^\]\n]{1,200}\] ?",
    "counter": r"\d{1,12}it \[[^\]\n]{1,200}\] ?",
    "margin": r"(?:  ){1,12}[|+] ",
    "time": rf"(?:\[ ?{_TIME} ?\]|{_TIME})(?:{_END}|: |(?=\[))",
    "logging": rf"(?P<l_logging>{_LEVELS}):(?!\w{{0,80}}(?:Error|Exception))[\w.]{{1,120}}:",
    "abslogging": rf"(?P<l_abslogging>{_LEVELS}):{_TIME}:[\w.]{{1,120}}:\d{{1,7}}: ?",
    "named": rf"[a-z]\w{{0,60}}(?:\.\w{{1,60}}){{1,6}} (?P<l_named>{_LEVELS}) ",
    "level": (
        rf"(?P<l_level>{_LEVELS})(?=[\s:|-]){_END}|\[ ?(?P<l_bracket>(?i:{_LEVELS})) {{0,8}}\]{_END}"
        rf"|(?P<l_colon>(?i:trace|debug|info|notice|warn|warning|error|err)):(?: |$)"
    ),
    "file": (
        rf"\[{_FILE}\](?:{_END}|: )|[\w./-]{{1,160}}\.(?:py|cc|cpp|cxx|cu|c|h|hpp|go"
        rf"|rs):\d{{1,7}}(?::[\w<>]{{1,80}})?(?:: | - | \| |\] )"
    ),
    "host": r"(?![a-z0-9.-]{0,100}(?:error|exception|warning):)(?=[a-z.-]{0,80}[\d-])[a-z0-9][a-z0-9.-]{0,100}: ",
}
BAR = "%|"
"""Occurs in every progress bar."""
_BEGINNINGS = {
    "[": "rank mpi horovod hydra mpich c10d nemo raycore sglang hugging role thread pod time level file",
    "(": "actor component ascend thread bar",
    " ": "srun bar margin",
    "0": "srun ident compose bar counter time file host",
    "A": "glog tensorflow bar time logging abslogging level file",
    "a": "ident compose bar named level file host",
    "": "bar file",
}
"""Items by what they may begin with: this character, a digit, a letter, or any other ASCII character."""


def _pattern(names: Collection[str]) -> re.Pattern[str]:
    """Has no two unbounded repeats: each alternative is tried once per item, over a bounded text."""
    return re.compile("|".join(f"(?P<{name}>{ITEMS[name]})" for name in ITEMS if name in names))


_ALL_ITEMS = _pattern(ITEMS)
_ITEMS_OF = {
    (beginning, has_bar): _pattern([name for name in names.split() if has_bar or name != "bar"])
    for beginning, names in _BEGINNINGS.items()
    for has_bar in (False, True)
}
_NAME = re.compile(r"[\w.:<>\[\]/-]{1,120}(?: {0,12}- | {1,12}\| )")
"""Name of a logger or source location, between time and level or after both."""
_OF_PROCESS = frozenset(
    [
        "rank",
        "mpi",
        "horovod",
        "hydra",
        "mpich",
        "srun",
        "role",
        "actor",
        "pod",
        "ident",
        "compose",
        "host",
        "ascend",
        "sglang",
    ]
)
"""Items that name a process: lines with the same ones come from the same process."""
_RECORDS = frozenset(["time", "level", "raycore"])
"""Items that may be followed by a logger's name."""


@dataclass(frozen=True, slots=True)
class Head:
    """A message, and what its head says."""

    text: str
    """The message without its head."""
    process: str = ""
    """Name of the process that printed it; empty if the head has none."""
    rank: int | None = None
    """Its global rank; None if not stated, or if the number may be a local rank."""
    level: LogLevel | None = None
    """Level stated by its logger; None if there is none."""


def split(text: str) -> Head:
    """Remove every known head from a message."""
    position, items = 0, 0
    process: list[str] = []
    rank: int | None = None
    level: LogLevel | None = None
    may_be_name = False
    has_bar = BAR in text
    while items < _MOST_ITEMS and position < len(text):
        items += 1
        match = items_at(text[position], has_bar).match(text, position)
        if match is None or match.end() == position:
            match = _NAME.match(text, position) if may_be_name else None
            if match is None or match.end() == len(text):
                break
            position, may_be_name = match.end(), False
            continue
        kind = _kind(match)
        found = match.groupdict()
        rank, level = _rank(found, rank), level if level is not None else _level(found)
        if kind in _OF_PROCESS:
            process.append((found.get("w_sglang") or match[0]).strip())
        may_be_name = kind in _RECORDS
        position = match.end()
    message = text[position:]
    stated = levels.in_text(message)
    return Head(message, " ".join(process), rank, level if stated is None else stated)


def items_at(character: str, has_bar: bool) -> re.Pattern[str]:
    """The items that may begin with a character."""
    beginning = ""
    if character in _BEGINNINGS:
        beginning = character
    elif not character.isascii():
        return _ALL_ITEMS
    elif character.isdigit():
        beginning = "0"
    elif character.isalpha():
        beginning = "A" if character.isupper() else "a"
    return _ITEMS_OF[beginning, has_bar]


def _kind(match: re.Match[str]) -> str:
    # groups are closed from the inside out: the last one is the alternative itself
    return match.lastgroup or ""


def _rank(found: dict[str, str | None], before: int | None) -> int | None:
    if (digits := found.get("n_rank")) is not None:
        return int(digits)
    if before is not None:
        return before
    for name in ("n_mpi", "n_horovod", "n_hydra", "n_srun", "n_ascend"):
        if (digits := found.get(name)) is not None and int(digits) >= 0:
            return int(digits)
    return None


def _level(found: dict[str, str | None]) -> LogLevel | None:
    for name in (
        "l_level",
        "l_bracket",
        "l_colon",
        "l_logging",
        "l_abslogging",
        "l_named",
        "l_hugging",
    ):
        if (word := found.get(name)) is not None:
            return levels.of_word(word)
    for name in ("l_c10d", "l_glog", "l_nemo", "l_ray", "l_tf"):
        if (letter := found.get(name)) is not None:
            return levels.of_letter(letter)
    return None
