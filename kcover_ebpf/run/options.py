"""Options of one `kcover-ebpf run`, checked before anything is started."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError
from kcover_ebpf.host import cgroups, process_tree
from kcover_ebpf.run.join.options import JoinOptions
from kcover_ebpf.settings import Act, Policy, Settings, parse_duration, read_table

if TYPE_CHECKING:
    from kcover_ebpf.api.job_rules import JobRule

_RULES = "job_rule"
_SHELLS = ("sh", "bash", "dash", "env")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Exactly one of `argv`, `pid` and `cgroup` is set."""

    settings: Settings
    name: str
    """Name of the job in messages."""
    argv: tuple[str, ...] = ()
    pid: int | None = None
    cgroup: Path | None = None
    for_s: float | None = None
    """Seconds after which watching stops (and our own job is ended); None: never."""
    json: bool = False
    metrics: str | None = None
    """ADDR:PORT at which metrics are served; None: not served."""
    snapshot_dir: Path = Path("kcover-snapshots")
    catalog: Path | None = None
    """File with the operator's own entries about Xids and SXids; None: only the shipped ones."""
    logs: tuple[Path, ...] = ()
    """Files to which the job's output goes."""
    job_rules: tuple[JobRule, ...] = ()
    """Rules for the lines of `logs`."""
    live: bool = False
    """On a terminal: True shows the ranks as a grid, False the table of waits."""
    record: Path | None = None
    """Path of the tape to write; None: no tape."""
    join: JoinOptions | None = None
    """How to join the other hosts of the job; None: all of it runs here."""
    record_names: bool = False
    """True: the tape keeps the names of programs, files and addresses."""


def choose_target(argv: tuple[str, ...], pid: int | None, cgroup: str | None) -> None:
    """Raise `UsageError` unless exactly one target is named."""
    named = [bool(argv), pid is not None, cgroup is not None]
    if sum(named) == 0:
        raise UsageError(
            "nothing to watch; give a command after --, or --pid PID, or --cgroup PATH"
        )
    if sum(named) > 1:
        raise UsageError("give only one of a command, --pid and --cgroup")


def find_target(
    argv: tuple[str, ...], pid: int | None, cgroup: str | None, act: Act
) -> tuple[str, Path | None]:
    """Name of the job, and the directory of `--cgroup`; raises `UsageError` if it is not there."""
    if argv:
        check_program(argv)
        return name_of(argv), None
    if pid is not None:
        check_pid(pid, act)
        return f"pid-{pid}", None
    path = find_cgroup(cgroup or "", act)
    return path.name, path


def make_settings(
    act: str, policy: Path | None, max_restarts: int | None
) -> tuple[Settings, tuple[JobRule, ...]]:
    """Settings from the flags and the policy file, and that file's job rules; `--max-restarts` overrides the file."""
    table = {} if policy is None else read_table(policy, "policy")
    rules: tuple[JobRule, ...] = ()
    if _RULES in table:
        # RE2 is memory that a run without rules does not need
        from kcover_ebpf.api.job_rules import of_table

        rules = of_table({_RULES: table.pop(_RULES)}, f"policy {policy}")
    chosen_policy = Policy.of(table, f"policy {policy}")
    if max_restarts is not None:
        if act != Act.RESTART.value:
            raise UsageError("--max-restarts needs --act restart")
        chosen_policy = replace(chosen_policy, max_restarts=max_restarts)
    return Settings(act=Act(act), policy=chosen_policy), rules


def check_logs(logs: tuple[Path, ...], rules: tuple[JobRule, ...], *, joins: bool = False) -> None:
    """Raise `UsageError` unless the job's logs are files, and at least one is given if there are rules for them.

    `joins`: the job runs on several hosts. The log of one of them does not show what those of the others do.
    """
    if joins and (logs or rules):
        raise UsageError("--join reads no logs: leave out --log, and the policy's [[job_rule]]s")
    if rules and not logs:
        raise UsageError("job rules need --log FILE, the file that the job's output goes to")
    for path in logs:
        if path.exists() and not path.is_file():
            raise UsageError(f"--log {path} is not a file; name the one that the output goes to")


def check_catalog(path: Path | None) -> None:
    """Raise `PolicyError` unless the operator's catalogue is valid."""
    if path is not None:
        from kcover_ebpf.devices.catalog.files import load

        load(path)


def parse_for(text: str | None) -> float | None:
    """Seconds given with `--for`; raises `UsageError`."""
    if text is None:
        return None
    try:
        duration_s = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--for: {error}") from error
    if duration_s <= 0:
        raise UsageError("--for 0 would watch nothing; give a longer time, like 30s")
    return duration_s


def check_program(argv: tuple[str, ...]) -> None:
    """Raise `UsageError` unless the command's program exists and may be executed."""
    program = argv[0]
    candidates = (
        [Path(program)]
        if "/" in program
        else [Path(folder) / program for folder in os.get_exec_path()]
    )
    found = [path for path in candidates if _is_file(path)]
    if not found:
        raise UsageError(f"program {program!r} does not exist; check its name and PATH")
    if not any(os.access(path, os.X_OK) for path in found):
        raise UsageError(f"{found[0]} may not be executed; chmod +x it, or name its interpreter")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder of PATH that we may not read
        return False


def find_cgroup(text: str, act: Act) -> Path:
    """The directory of `--cgroup`; raises `UsageError`."""
    path = cgroups.find(text)
    if act is not Act.OBSERVE and act is not Act.SNAPSHOT and cgroups.is_root(path):
        raise UsageError(
            f"{path} contains the whole machine; --act {act.value} needs a smaller cgroup"
        )
    return path


def check_pid(pid: int, act: Act) -> None:
    """Raise `UsageError` unless the process can be watched, and ended if `act` says so."""
    process_tree.check_pid(pid)
    if (
        act is not Act.OBSERVE
        and act is not Act.SNAPSHOT
        and pid in process_tree.ancestors(os.getpid())
    ):
        raise UsageError(
            f"process {pid} is a parent of this command, which would be killed with it"
        )


def check_act(act: Act, *, has_command: bool) -> None:
    """Raise `UsageError` if a job that we did not start should be restarted."""
    if act is Act.RESTART and not has_command:
        raise UsageError("--act restart needs a command after --; use --act shutdown here")


def name_of(argv: tuple[str, ...]) -> str:
    """A short name for a command: its script rather than its interpreter."""
    words = [Path(word).name for word in argv]
    if words[0].startswith("python") or words[0] in _SHELLS:
        for word, full in zip(words[1:], argv[1:], strict=True):
            if not full.startswith("-") and " " not in full and "=" not in full:
                return word.removesuffix(".py")
    return words[0]
