"""Writes docs/logs.md from the shipped rules for log lines, and the table of exit codes.

python tools/log_rules_doc.py           writes it
python tools/log_rules_doc.py --check   says whether it is up to date, and exits 1 if not
"""

import sys
from collections.abc import Iterator

from kcover_ebpf.logs.exit_codes import table
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
`meaning`, `advice`, `time` (where a container runtime noted it). Xid and SXid lines are looked up in the [catalogue](hardware.md).

A kernel rule never applies to a line of a container's log, nor to a line of the kernel's log that user space wrote (`/dev/kmsg` records and
`dmesg -x` show which side wrote a line): any program can print a line that looks like a fault. The kernel's own lines quote names that a
program chose (its own, its file's, a mount option), so a rule that concerns the node and is lasting matches only from the beginning of a message. A container's log classifies a crash; it is never a reason
to end a running job.

All rules are searched at once by RE2, whose time is linear in the length of the log whatever a line contains: over 100 MB of a quiet training log per
second of CPU ([measured](bench/logs.md)).

## Logs of containers in a cluster

The agent reads the logs of the ranks' containers of watched pods (`agent.containerLogs.enabled`, on by default) and follows them through rotation and
restarts of the container. Once a job has a fault, its Incident says what they show:

- `status.class`: where the cause lies, `hardware` (a device, its driver, the node), `network`, `storage`, `program` (the program, its input, or the memory it was
  given) or `unknown`. What the kernel, a driver or the API server announced decides; then the log of the culprit's pod; then the [exit code](#exit-codes).
  Lines of victims (a peer that went away) decide nothing.
- `status.evidence` with kind `log`: rule, meaning and advice, and where a Python traceback was raised. `kubectl kcover explain`, `trace POD` and the Incident show it.
  Such a line never makes a fault, names no culprit, and **does not count as evidence to end a job**, alone or with others.
- `status.crashes`: what identifies the crash, for the next one to be compared with.

**A bug that a restart does not mend.** A job whose program fails after a restart with the same traceback at the same step is not restarted again: the Incident
is `Refused`, or, where its kubelets would restart it for ever, the job is suspended, and the message says so. `kubectl kcover approve` restarts it all the same. The same means: all frames (file, line,
function) and classes of errors that the program raised within 30 s before it ended, the last step and epoch that its log named before, and a start of
the container after the first crash. Where no step was logged, both starts must have failed within five minutes. Tracebacks about the network, storage or hardware never count, nor do those of launchers;
those about CUDA and values that are not finite count only on another node, for a GPU may be at fault. It rests on the records of the last
incidents of the job within the restart window, so a controller that starts anew knows them.

**What leaves the node.** A log may hold secrets. Reports and incidents hold names of rules, counts, ages, a hash of each traceback (its messages are not in it),
`FILE:LINE` of the innermost frame of the program without the folder, step and epoch: no text of a log. Bundles, which stay on the node, hold the ends of logs as before.

**What is read.** Only regular files of root with one name below `agent.containerLogs.folder` (the kubelet's `podLogsDir`): no symbolic or hard link is followed, so a pod
that can write there has nothing else read. At most 5% of a core for all logs of a node, block by block in turn; what a container writes faster is skipped and
counted (`kcover_log_skipped_bytes_total`), the end of a log first of all being read. Up to 256 containers; lines are read up to 32 KiB. Rotated files are
read to their end while they are open; compressed ones never.

## The kernel's log of a node

Each inspection (`kcover-ebpf inspect`, check `kernel_log`) reads the kernel's log since the boot by the rules below that concern the node. What lasts until a
repair or a reboot, and is `fatal` or `error`, fails the check; the rest is a warning for an hour. So it stands in the node's `NodeHealth`, metrics and
`kubectl kcover nodes`, and an operator's policy may keep new pods off the node ([inspection](inspection.md)). After a repair without a reboot,
`dmesg --clear` on the node ends it. Xids are [announced faults](hardware.md) with an end of their own. No rule that fails a node can be
satisfied by the name of a process, which the kernel prints into lines and any tenant chooses.

## Own rules

`--rules FILE` (of the agent and of `inspect` `--log-rules`, in the chart `agent.containerLogs.rules`) reads rules that take precedence over the shipped ones, as TOML:

```toml
[[rule]]
name = "our_storage_gateway"
source = "container"            # or "kernel", the default
pattern = 'gateway \\d+ lost quorum'
domain = "storage"
severity = "error"
concerns = "job"                # the default; or "node"
lasting = false                 # the default
generic = false                 # the default; true: says that a program failed, and not why
meaning = "the storage gateway cannot write"
advice = "call the storage team"
```

or the JSON of a log monitor of node-problem-detector, of which `type`, `reason`, `pattern` and `condition` are read. Patterns have
[RE2's syntax](https://github.com/google/re2/wiki/Syntax); begin that of a lasting rule about the node with `^`.
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


def exit_codes() -> Iterator[str]:
    """What the table says."""
    yield "\n## Exit codes\n"
    yield "Of containers and ranks; above 128 it is 128 and the number of a signal."
    yield "`class`: where the cause most likely lies if no log says more.\n"
    yield "| code | meaning | class | what to do |"
    yield "|---|---|---|---|"
    for code, row in sorted(table().items()):
        yield f"| {code} | {row.meaning} | {row.failure.value} | {row.advice} |"


def main(arguments: list[str]) -> int:
    text = "\n".join((*tables(), *exit_codes()))
    return keep({PAGE: f"{HEAD}{text}\n"}, arguments, "tools/log_rules_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
