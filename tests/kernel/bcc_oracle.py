"""An independent witness, by bcc: what threads ran, how often they slept, and which processes ended.

bcc_oracle.py PID...: run by the system's Python, which has bcc. Says "ready"; then answers each line with one of JSON.
It shares nothing with the sensor: tracepoints of the scheduler instead of iterators, and no kernel structure is read.
"""

from __future__ import annotations

import json
import sys

PROGRAM = r"""
struct account { u64 tid; u64 cpu_ns; u64 span_ns; u64 voluntary; };
BPF_HASH(watched, u32, u8);
BPF_HASH(accounts, u64, struct account);
BPF_PERCPU_ARRAY(switched_ns, u64, 1);
BPF_HASH(ended, u32, u64);

// What ran on this CPU since its last switch is the current thread: args are preempt, prev, next, prev_state. The span
// is wall time, and holds interrupts and what the hypervisor gave to others.
RAW_TRACEPOINT_PROBE(sched_switch) {
    u32 zero = 0, pid = bpf_get_current_pid_tgid() >> 32, tid = bpf_get_current_pid_tgid();
    u64 now_ns = bpf_ktime_get_ns(), *since_ns = switched_ns.lookup(&zero), task = ctx->args[1];
    u64 before_ns = since_ns ? *since_ns : 0;
    if (since_ns) *since_ns = now_ns;
    if (!before_ns || !watched.lookup(&pid)) return 0;
    struct account none = { .tid = tid }, *account = accounts.lookup_or_try_init(&task, &none);
    if (!account) return 0;
    account->span_ns += now_ns - before_ns;
    if (!ctx->args[0] && (u32)ctx->args[3]) account->voluntary++;
    return 0;
}

// What the scheduler charges to a thread, on whichever CPU it does so: args are the task and a time in ns.
RAW_TRACEPOINT_PROBE(sched_stat_runtime) {
    u64 task = ctx->args[0];
    struct account *account = accounts.lookup(&task);
    if (account) account->cpu_ns += ctx->args[1];
    return 0;
}

RAW_TRACEPOINT_PROBE(sched_process_exit) {
    u64 both = bpf_get_current_pid_tgid(), now_ns = bpf_ktime_get_ns();
    u32 pid = both >> 32, tid = both;
    if (pid == tid) ended.update(&pid, &now_ns);
    return 0;
}
"""


def main() -> None:
    from bcc import BPF

    program = BPF(text=PROGRAM)
    watched = program["watched"]
    for word in sys.argv[1:]:
        watched[watched.Key(int(word))] = watched.Leaf(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        accounts = {
            found.tid: (found.cpu_ns, found.span_ns, found.voluntary)
            for found in program["accounts"].values()
        }
        ended = sorted(key.value for key in program["ended"])
        print(json.dumps({"accounts": accounts, "ended": ended}), flush=True)


if __name__ == "__main__":
    main()
