"""`kcover-ebpf completion`: the script that makes a shell complete our options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_EXAMPLES = """
\b
Examples:
  kcover-ebpf completion bash > /etc/bash_completion.d/kcover-ebpf
  kcover-ebpf completion zsh > "${fpath[1]}/_kcover-ebpf"
  kcover-ebpf completion fish > ~/.config/fish/completions/kcover-ebpf.fish

\b
Exit codes:
  0 printed; 2 wrong usage
"""
_VARIABLE = "_KCOVER_EBPF_COMPLETE"


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from kcover_ebpf.cli import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion script for {shell}")
    maker = found(cli, {}, "kcover-ebpf", _VARIABLE)
    click.echo(maker.source_template % maker.source_vars())
