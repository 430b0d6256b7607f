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

`logs` prints each line that matches a rule, with its meaning and what to do, and omits the others. `-o json` prints one object per line, with the fields `number` (of the line, from 1), `line` (the message), `rule`, `domain` (`hardware`, `driver`, `network`, `storage`, `memory`,
`program`, `outside`: a scheduler, a launcher or a person ended the run), `severity` (`fatal`, `error`, `warning`, `info`), `concerns` (`node` or `job`),
`lasting` (until repair or reboot), `check` (the inspection check that shows whether the fault persists),
`meaning`, `advice`, `time` (if a container runtime recorded it), `rank` (if a launcher prefixed the line with it), and `follows` (the line is a consequence of a failure elsewhere: the process that prints it is a victim). Xid and SXid lines are looked up in the [catalogue](hardware.md). What the message says (the action that Xid 154 names, the severity, sub-code and injection of Xid 144 to 150) outranks the number, as it does for the sensor.

## Lines as they arrive

Before any rule is applied, and before tracebacks are searched for, one step turns whatever arrives into lines:

- **In front of a message** it removes ranks and hosts (PyTorch `[rank3]: `, torchrun `--tee`, `srun -l`, Open MPI, Horovod, MPICH, pdsh, `kubectl logs --prefix`, Docker Compose), actors of Ray and vLLM,
  and the records of Python's logging, loguru, glog, absl, c10d, SGLang, DeepSpeed, NeMo, Ascend and shippers. The rank and the level are kept, and lines of one process are kept together.
- **Around it** it handles lines that a container runtime split, Docker's JSON, JSON of structured loggers (also with a whole traceback in one string), colours, what a progress bar drew earlier on the same line, the margin of an exception group, UTF-16, and bytes that are not text.
- **The kernel's log** is read from `dmesg` (`-T`, `-x`, `-r`, `-d`, `--json`), `journalctl` (`short-*`, `json`, `json-pretty`, `json-seq`, `json-sse`, `verbose`, `export`), `talosctl dmesg`, netconsole, syslog, also behind the name of a host (pdsh) or a file (grep). The second line of a record belongs to the writer of the first.

**A line's own level counts.** A line that its writer calls a warning or less (`WARNING`, `[W`, a Python warning class), or that says that the program retries or does without, is at most a warning, concerns only the job, and is not lasting. So an optional import that fails is no error. NCCL's `WARN` is its word for an error. Text that a program says it read or generated (`prompt: `, `User: `, a JSON object with a `text` and no level) is data, whatever it quotes. Advice and conditions (`To avoid ...`, `If you see ...`), code and shell commands, test results, and negated statements (`no NaN found`) do not say that anything happened: they are information. How a process ended counts, too: a signal that asks it to end comes from outside, and SIGKILL comes from outside or from the kernel for lack of memory; neither is a bug of the program. A [table](bench/log-reports.md) shows how lines and crashes from public reports are classified.

A kernel rule never applies to a line of a container's log, nor to a line of the kernel's log that user space wrote (`/dev/kmsg` records and
`dmesg -x` show which side wrote a line): any program can print a line that resembles a fault. The kernel's own lines quote names that a program chose (its own, its file's, a mount option), so a lasting rule that concerns the node matches only from the beginning of a message. A container's log classifies a crash; it is never a reason to end a running job.

RE2 searches for all rules at once. Its time is linear in the length of the log, whatever a line contains: over 100 MB of a quiet training log per second of CPU ([measured](bench/logs.md)). The patterns that remove line prefixes are bounded.

## Logs of containers in a cluster

The agent reads the logs of the ranks' containers of watched pods (`agent.containerLogs.enabled`, on by default) and follows them through rotation and
restarts of the container. Once a job has a fault, its Incident includes what they show:

- `status.class`: where the cause is, `hardware` (a device, its driver, the node), `network`, `storage`, `program` (the program, its input, or the memory it was given) or `unknown`. What the kernel, a driver or the API server announced decides first, then the log of the culprit's pod, then the [exit code](#exit-codes). Victims' lines (a peer that went away) decide nothing. An error that no rule explains, such as a `RuntimeError` that wraps another, decides only if neither another traceback of that crash nor a nearby line says more.
- `status.evidence` with kind `log`: rule, meaning and advice, and where a Python traceback was raised. `kubectl kcover explain`, `trace POD` and the Incident show it. Such a line never constitutes a fault, names no culprit, and **does not count as evidence to end a job**, alone or with others. If three or more containers print something, one line names the first cause. Kind comes first, because a container that says that a peer is gone, or that a launcher ended it, is a victim; then time (exact to about a second between nodes). The line says how many others raised the same, and how many followed. Another line says how far the training had come: the last step, steps since the last checkpoint, steps repeated after a restart.
- `status.crashes`: what identifies the crash, for comparison with the next one. Of pods that fail together with the same traceback at the same step, one is recorded, and one more on another node.

**A bug that a restart does not fix.** A job whose program fails after a restart with the same traceback at the same step is not restarted again: the Incident is `Refused`, or, if its kubelets would restart it for ever, the job is suspended, and the message says so. `kubectl kcover approve` restarts it all the same.

Two crashes are the same under three conditions. All frames (file, line, function) and error classes that the program raised in the 30 s before it ended are equal. The last step and epoch that its log named are equal (if several ranks write to one log, those of the rank that raised the error, where the lines say whose they are). And the container was started after the first crash. If no step was logged, both starts must have failed within five minutes.

A crash with a traceback about the network, storage, memory or hardware never counts, whatever wraps it. Nor does one near a line (`fatal` or `error`) about hardware, a driver, the network or storage, nor one of an Incident of class `hardware`, `network` or `storage`. Tracebacks of launchers are ignored, as are what ranks say about each other (a lost peer, a time-out of a collective) after the program's last traceback, and lines of that kind. Crashes about CUDA and non-finite values count only on another node, because a GPU may be at fault. The comparison uses the records of the job's last incidents within the restart window, so a restarted controller knows them.

A program's output and its tracebacks come through two pipes, and the runtime may write the traceback first. So a step also counts as printed before a traceback if its line comes from the other pipe up to 3 s later, and a second crash is compared no earlier than 1 s after the rank ended.

**An end from outside is no bug.** If a log says that the run was ended (SIGTERM, preemption, `scancel`, a time limit) before the program raised an error, the crash does not count as the program's. What a launcher prints when it ends the others after one has failed changes nothing.

**What leaves the node.** A log may contain secrets. Reports and incidents contain names of rules, counts, ages, a hash of each traceback (without its messages),
`FILE:LINE` of the program's innermost frame without the folder, step, epoch, loss, tokens taken, rank, the numbers that a policy's rules ask for, and the name of a phase that the program announced, but no other text of a log. Bundles stay on the node until they are [fetched](incidents.md). They contain the ends of logs, with recognised secrets [masked](incidents.md#what-is-never-in-it), unless the policy has `evidenceLogs: false`.

**What is read.** The agent reads only regular files that root owns and that have a single name, below `agent.containerLogs.folder` (the kubelet's `podLogsDir`). No symbolic or hard link is followed, so a pod that can write there cannot get other files read. All logs of a node together take at most 5% of a core, one block of each in turn. What a container writes faster is skipped and counted (`kcover_log_skipped_bytes_total`); the end of a log is read first. Up to 256 containers are followed, one of each pod before a second one of any, and lines are read up to 32 KiB. Rotated files are read to their end while they are open; compressed ones are not read.

## What a job's log must show

`spec.jobRules` of a [FaultPolicy](policy.md) states what the logs of its jobs must show:

```yaml
spec:
  jobRules:
    - {name: trains, line: step, withinSeconds: 1200, everySeconds: 600, action: Restart}
    - {name: loss, line: loss, below: 12, times: 20}
    - {name: our own, pattern: 'samples/s: (?P<value>[0-9.]+)', above: 100}
```

A rule is about a job: a line from any of its containers is enough, and a number is off if it is off in any container. `line` is one that common trainers print (`step`, `loss`, `gradNorm`, `tflops`, `tokensPerSecond`, `stepSeconds`,
`checkpoint`), in the forms of Megatron-LM, DeepSpeed, torchtitan, torchtune, Lightning, Hugging Face's trainer (so TRL and axolotl), LLaMA-Factory, NeMo, MaxText, Composer, Keras, nanoGPT, llm.c, fairseq, mmengine,
timm, PaddleNLP, Levanter, veRL, OpenRLHF and of progress bars; a number in milliseconds is converted to seconds. `pattern` is your own (RE2). `withinSeconds` counts from the first line of the container that started last, `everySeconds` from the last such line. A number that is not finite is outside any limit. Only time in which the logs are read counts: after a pause of a node (30 s of it count at most), or a step of its clock, no line is missing. While a pod is not reported, no line counts as missing, and in a log that was not read from its beginning the first line is never missing.

The logs of a node are searched for at most 64 different rules, and at most 32 of one namespace. The agent's log names each pod whose rules exceed that; such rules are not reported, and never count as broken.

With `action: Restart` a broken rule is a fault of the job (`HUNG`, cause `unknown`). An armed job is restarted for it within the budget of its policy, as for any other fault; the rule's text is in the evidence. With `Observe`, the default, an Incident is written and nothing is done. `kcover-ebpf logs FILE --job-rules RULES.toml` tries rules on a saved log (`[[job_rule]]` tables, keys in snake case) as of its last line.

On one host (without `--join`), the same tables are part of the policy file of `run`, and `--log` names the file that the job's output goes to (repeat it for several). What the file contained before the start does not count:

```sh
kcover-ebpf run --act restart --policy policy.toml --log train.log -- torchrun train.py > train.log 2>&1
```

```toml
[[job_rule]]
name = "trains"
line = "step"
within_seconds = 1200
every_seconds = 600
action = "Restart"
```

There, a suspended job misses no line either, whether it is suspended alone or together with the run.

**A clock of progress.** A step, and a line that a rule expects in time, are signs of progress. They begin no fault and never end a job sooner: if one was printed after the ranks fell silent, the patience of an inferred fault, and a policy's `hard_limit`, count from it. What was announced or is proven does not wait for a log. So write no such rule for a line that a side thread prints whatever the ranks do. If a rule expects a line in time, and the job has printed neither such a line nor a step since its last restart, a hang does not restart it again: the Incident is `Refused` and says so (`kubectl kcover approve` restarts it all the same), and `run` ends the job.

**Hints.** A program may announce what it is about to do, in one line on its standard error. This is optional. [`hints/kcover_hint.py`](../hints/kcover_hint.py) is one file without dependencies; `hints/kcover_hint.sh` is the same for scripts:

```python
from kcover_hint import checkpoint_complete, phase

with phase("evaluation", up_to_s=900):
    evaluate(model)
checkpoint_complete(step)
```

A phase that is announced for longer than the operator allows (`agent.containerLogs.longestPhase`, an hour) is ignored. Until an allowed phase is over, or the program announces its end, no job is ended for an inferred or suspected fault. `checkpoint_complete` costs the program 3 to 4 µs of CPU, `phase`, which prints two lines, 11 to 17 µs (means of 20,000 calls into a pipe, three runs at a load of 40).

**What a restart costs.** `status.work` of an Incident has the last step before the fault, the steps since the last checkpoint that the log says is complete, the steps that the new start repeated (as soon as it prints one), the mean seconds of a step, loss and tokens. `kubectl kcover stats` adds up these steps and their seconds, and subtracts them in `GOODPUT`; `kcover_lost_steps_total` and
`kcover_lost_work_seconds_total` count them over all jobs, and the agent serves `kcover_log_step`, `kcover_log_loss`, `kcover_log_unsaved_steps` and `kcover_log_redone_steps` of each pod that prints them.
A number that starts again with each epoch shows that the job moves, but is not a step.

## The kernel's log of a node

Each inspection (`kcover-ebpf inspect`, check `kernel_log`) searches the kernel's log since boot for the rules below that concern the node. A match that lasts until
repair or reboot, and is `fatal` or `error`, fails the check, unless another check of that inspection shows whether the fault persists (`nvml` for a GPU, `devlink` for a card), that is, if it was run and is not `unknown`. Any other match is a warning for an hour. The result appears in the node's `NodeHealth`, in metrics and in
`kubectl kcover nodes`, and an operator's policy may cordon the node ([inspection](inspection.md)). After a repair without a reboot, `dmesg --clear` on the node clears it. Xids are [announced faults](hardware.md), which are cleared separately. No rule that fails a node can be triggered by a process name, which the kernel prints in its lines and any tenant can choose.

## Own rules

`--rules FILE` (`--log-rules` of the agent and of `inspect`; `agent.containerLogs.rules` in the chart) reads rules that take precedence over the shipped ones, as TOML:

```toml
[[rule]]
name = "our_storage_gateway"
source = "container"            # or "kernel", the default
pattern = 'gateway \\d+ lost quorum'
domain = "storage"
severity = "error"
concerns = "job"                # the default; or "node"
lasting = false                 # the default
check = ""                      # the default; a check of an inspection that shows whether it is still so
generic = false                 # the default; true: shows that a program failed, but not why
follows = false                 # the default; true: says what followed from a failure elsewhere
meaning = "the storage gateway cannot write"
advice = "call the storage team"
```

or as the JSON of a node-problem-detector log monitor, of which `type`, `reason`, `pattern` and `condition` are read. Patterns have
[RE2's syntax](https://github.com/google/re2/wiki/Syntax); begin the pattern of a lasting rule about the node with `^`. `^`, `$` and flags refer to the message, without what the log put in front of it, and text in any language matches. If RE2 refuses a rule, or the rules are too many for one automaton (64 MiB), they are refused when they are loaded: agent and commands end with exit code 2 and a line that says which.
"""


def tables() -> Iterator[str]:
    """One table per log."""
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
    """The table of exit codes."""
    yield "\n## Exit codes\n"
    yield "Of containers and ranks; a code above 128 is 128 plus the number of a signal."
    yield "`class`: where the cause most likely lies unless a log shows more.\n"
    yield "| code | meaning | class | what to do |"
    yield "|---|---|---|---|"
    for code, row in sorted(table().items()):
        yield f"| {code} | {row.meaning} | {row.failure.value} | {row.advice} |"


def main(arguments: list[str]) -> int:
    text = "\n".join((*tables(), *exit_codes()))
    return keep({PAGE: f"{HEAD}{text}\n"}, arguments, "tools/log_rules_doc.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
