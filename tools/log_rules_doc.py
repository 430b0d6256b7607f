"""Writes docs/logs.md from the shipped rules for log lines.

python tools/log_rules_doc.py           writes it
python tools/log_rules_doc.py --check   says whether it is up to date, and exits 1 if not
"""

import sys
from collections.abc import Iterator

from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.rules import shipped
from tools.pages import ROOT, keep

PAGE = ROOT / "docs/logs.md"

HEAD = """# What a log says

<!-- Written by tools/log_rules_doc.py from the rules: change those. -->

```sh
dmesg | kcover-ebpf logs -                      # the kernel's log, in any form that dmesg and journalctl print
kcover-ebpf logs /var/log/pods/*/*/0.log        # a container's log, as the kubelet keeps it
kubectl logs trainer-3 | kcover-ebpf logs - --source container -o json
```

`logs` prints each line that a rule matches, with its meaning and what to do, and nothing for the others. `-o json` gives one object a
line: `number` (of the line, from 1), `line` (the message), `rule`, `domain` (`hardware`, `driver`, `network`, `storage`, `memory`,
`program`), `severity` (`fatal`, `error`, `warning`, `info`), `concerns` (`node` or `job`), `lasting` (until repair or reboot),
`meaning`, `advice`. Xid and SXid lines are looked up in the [catalogue](hardware.md).

A kernel rule never applies to a line of a container's log, nor to a line of the kernel's log that user space wrote (`/dev/kmsg` records and
`dmesg -x` show which side wrote a line): any program can print a line that looks like a fault. A container's log classifies a crash; it is never a reason
to end a running job.

All rules are searched at once by RE2, whose time is linear in the length of the log whatever a line contains. Per second of CPU:
over 130 MB of a quiet training log, 106 MB where one line in a hundred is an error, 1.4 MB where each is (`tools/logbench.py`).

## Own rules

`--rules FILE` reads rules that take precedence over the shipped ones, as TOML:

```toml
[[rule]]
name = "our_storage_gateway"
source = "container"            # or "kernel", the default
pattern = 'gateway \\d+ lost quorum'
domain = "storage"
severity = "error"
concerns = "job"                # the default; or "node"
lasting = false                 # the default
meaning = "the storage gateway cannot write"
advice = "call the storage team"
```

or a log monitor of node-problem-detector (`*.json`), of which `type`, `reason`, `pattern` and `condition` are read. Patterns have
[RE2's syntax](https://github.com/google/re2/wiki/Syntax).
"""


def tables() -> Iterator[str]:
    """One table for each log."""
    for source, title in ((Source.KERNEL, "Kernel"), (Source.CONTAINER, "Container")):
        yield f"\n## {title} rules\n"
        yield "| rule | domain | severity | concerns | meaning | what to do |"
        yield "|---|---|---|---|---|---|"
        for rule in shipped():
            if rule.source is source:
                yield (
                    f"| `{rule.name}` | {rule.domain} | {rule.severity} | {rule.concerns} "
                    f"| {rule.meaning} | {rule.advice} |"
                )


def main(arguments: list[str]) -> int:
    return keep({PAGE: HEAD + "\n".join(tables()) + "\n"}, arguments, "tools/log_rules_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
