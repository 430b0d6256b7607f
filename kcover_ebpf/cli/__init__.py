"""The command `kcover-ebpf`. A command's module is imported when the command is used: `--help` loads none."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import click

from kcover_ebpf import __version__
from kcover_ebpf.cli.entry import call

_COMMANDS = {
    "run": "Watch a job for hangs and faults; shut it down or restart it as a whole.",
    "replay": "Diagnose a recorded job again.",
    "simulate": "Try another policy on recorded jobs.",
    "report": "Write the page of an incident from its archive, or from a tape.",
    "trace": "Explain why a process or job is stuck, in one run of a few seconds.",
    "agent": "Watch the training pods on a Kubernetes node.",
    "inspect": "Check whether this node is fit for training.",
    "doctor": "Check which probes work on this host, and what cannot be observed.",
    "upload": "Copy the archives that the agent of this node keeps into a store.",
    "controller": "Diagnose and restart the jobs of a Kubernetes cluster.",
    "logs": "Classify the lines of a kernel or container log.",
    "collectives": "Find late ranks and slow links in the files of NCCL Inspector.",
    "drill": "Inject a fault into a pod of this node; used by `kubectl kcover drill`.",
    "preflight": "Ask whether a node passed its last inspection, before a job starts on it.",
    "xid": "Explain an Xid (GPU) or SXid (NVSwitch) number.",
    "completion": "Print the completion script for a shell.",
}
_EXAMPLES = """
\b
Examples:
  kcover-ebpf run --act shutdown -- torchrun --nproc-per-node 4 train.py
  kcover-ebpf trace --pid 4711
  kcover-ebpf doctor

\b
Exit codes:
  of all commands: 0 done; 2 wrong usage; 3 cannot observe; 70 internal error; 130 interrupted
"""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"kcover_ebpf.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=_LazyGroup, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="kcover-ebpf")
def cli() -> None:
    """Find the rank that hangs or fails in a distributed training job, with eBPF.

    Watching a job needs root, or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH and CAP_KILL. The training
    code does not change.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, with one line on stderr for every error."""
    return call(cli, "kcover-ebpf", arguments)
