"""Runs libFuzzer over one target in its own process, and parses what it prints at the end."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fuzz import one
from tests.fuzz.target import CORPUS, Target

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/fuzz"
INPUT_S = 30
"""Seconds of wall time for one input, which take milliseconds: on a busy machine the process may wait for seconds."""
MEMORY_MB = 512
"""Of the whole process: 100 MB are the interpreter, the parsers and the instrumentation."""
_KEPT_COUNT = 12
_KEPT_BYTES = 1024
"""Of one input, and their number for each target: the repository keeps what a replay of a second can use."""


@dataclass(frozen=True)
class Ended:
    """How libFuzzer ended."""

    exit_code: int
    said: str
    cpu_s: float


@dataclass(frozen=True)
class Result:
    """What one run came to."""

    name: str
    seconds: int
    """Of wall time."""
    cpu_s: float
    executions: int
    edges: int
    """Of our code that were executed; a comparison that a regular expression makes counts, too."""
    corpus_count: int
    """Inputs that each reach something that no smaller one does."""
    peak_mb: int
    slowest_s: int
    """Of one input, in whole seconds: libFuzzer rounds down."""
    crash: str
    """The last line of the error; empty without one."""

    @property
    def line(self) -> str:
        """For the terminal."""
        end = f"CRASH {self.crash}" if self.crash else "no crash"
        counts = (
            f"{self.executions:>10,} inputs  {self.edges:>5} edges  {self.corpus_count:>5} kept"
        )
        return f"{self.name:16} {counts}  {self.peak_mb:>4} MB  {end}"


def fuzz(target: Target, seconds: int) -> Result:
    """Fuzz for so many seconds, from the corpus in the repository and what earlier runs found."""
    found = WORK / target.name
    found.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={target.most_bytes}",
        f"-timeout={INPUT_S}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-artifact_prefix={WORK}/{target.name}-",
        "-print_final_stats=1",
    ]
    result = _read(
        target.name, seconds, _one(target, [str(found), str(CORPUS / target.name), *options])
    )
    (WORK / f"{target.name}.json").write_text(json.dumps(asdict(result)))
    return result


def results() -> list[Result]:
    """The last result of each target that was fuzzed here, by name."""
    return [Result(**json.loads(path.read_text())) for path in sorted(WORK.glob("*.json"))]


def keep(target: Target) -> None:
    """Copy some small inputs, of all lengths, that reach what the corpus in the repository does not."""
    ours = CORPUS / target.name
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ours, folder, dirs_exist_ok=True)
        before = {path.name for path in ours.iterdir()}
        _one(target, ["-merge=1", f"-max_len={_KEPT_BYTES}", folder, str(WORK / target.name)])
        fresh = [path for path in Path(folder).iterdir() if path.name not in before]
        small = sorted((path.stat().st_size, path.name) for path in fresh)
        small = [pair for pair in small if pair[0] <= _KEPT_BYTES]
        for _, name in small[:: max(1, -(-len(small) // _KEPT_COUNT))]:
            shutil.copy(Path(folder) / name, ours)


def _one(target: Target, arguments: list[str]) -> Ended:
    """LibFuzzer never returns, so it has a child of ours, which has the instrumented parsers already."""
    log = WORK / f"{target.name}.log"
    WORK.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(written, 1)
            os.dup2(written, 2)
            one.fuzz(target, arguments)
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    said = log.read_text(errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), said, usage.ru_utime + usage.ru_stime)


def _read(name: str, seconds: int, ran: Ended) -> Result:
    said = ran.said
    return Result(
        name=name,
        seconds=seconds,
        cpu_s=round(ran.cpu_s, 1),
        executions=_last(r"stat::number_of_executed_units:\s*(\d+)", said),
        edges=_last(r"\bcov: (\d+)", said),
        corpus_count=_last(r"\bcorp: (\d+)/", said),
        peak_mb=_last(r"stat::peak_rss_mb:\s*(\d+)", said),
        slowest_s=_last(r"stat::slowest_unit_time_sec:\s*(\d+)", said),
        crash=_crash(said) if ran.exit_code else "",
    )


def _last(pattern: str, said: str) -> int:
    found = re.findall(pattern, said)
    return int(found[-1]) if found else 0


def _crash(said: str) -> str:
    """The exception, or libFuzzer's own words for a time-out or too much memory."""
    lines = [line.strip() for line in said.splitlines()]
    own = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b|==\d+== ?ERROR", line)]  # fmt: skip
    return (own or lines)[-1 if not own else 0][:200] if lines else "no output"
