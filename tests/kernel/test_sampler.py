"""The life of the kernel half: ticks, restarts, privileges, refusals, and that nothing stays."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kcover_ebpf.errors import LoadError
from kcover_ebpf.facts.kernel import ProcessExit, ThreadSample, Tick
from kcover_ebpf.host.capabilities import KEPT
from kcover_ebpf.ids import Pid
from kcover_ebpf.kernel import probes
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
from kcover_ebpf.tunables.host import LATE_PASS_PERIODS
from testbed.skips import ROOT
from tests.kernel.helpers import events, of_kind, program, running, until, until_asleep, watch

OPENED = """
import os, sys, time
from kcover_ebpf.errors import KcoverError
from kcover_ebpf.facts.kernel import Detail, SampleRequest
from kcover_ebpf.host import capabilities
from kcover_ebpf.kernel.sampler import KernelSampler
from kcover_ebpf.settings import Settings
try:
    kernel = KernelSampler.open(Settings())
except KcoverError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def script(text: str) -> list[str]:
    return [sys.executable, "-uc", OPENED + textwrap.dedent(text)]


def outcome(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


def test_a_tick_shows_its_period_and_whether_it_was_late(kernel: KernelSampler) -> None:
    first = of_kind(kernel.sample([]), Tick)[0]
    assert (first.period_ns, first.lost_count, first.late) == (0, 0, False)
    time.sleep(0.1)
    before_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    second = of_kind(kernel.sample([]), Tick)[0]
    after_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert second.period_ns == second.boottime_ns - first.boottime_ns
    assert second.period_ns >= 100_000_000
    assert second.late == (second.period_ns > LATE_PASS_PERIODS * Settings().period_s * 1e9)
    assert before_ns <= second.boottime_ns <= after_ns
    time.sleep(2.6 * Settings().period_s)
    assert of_kind(kernel.sample([]), Tick)[0].late


def test_waiting_ends_with_the_first_event(kernel: KernelSampler) -> None:
    with running(program("crowd"), "threads", "1") as target:
        target.line()
        kernel.watch(target.pid)
        began = time.monotonic()
        assert kernel.wait(0.3) == []
        assert time.monotonic() - began > 0.25
        os.kill(target.pid, signal.SIGKILL)
        assert kernel.wait(3600.0) != []


def test_two_sensors_do_not_disturb_each_other(kernel: KernelSampler) -> None:
    with (
        KernelSampler.open(Settings()) as other,
        running(program("crowd"), "threads", "7") as target,
    ):
        target.line()
        for one in (kernel, other):
            watch(one, target.pid)
            assert len(of_kind(one.sample([]), ThreadSample)) == 8
        os.kill(target.pid, signal.SIGKILL)
        for one in (kernel, other):
            assert [fact.pid for fact in events(one, 1, ProcessExit)] == [target.pid]


def test_a_restarted_sensor_knows_how_long_threads_wait() -> None:
    with running(program("waits"), "futex") as target:
        target.line()
        until_asleep(target.pid)
        since = []
        for _ in range(2):
            time.sleep(0.3)
            with KernelSampler.open(Settings()) as kernel:
                kernel.watch(target.pid)
                samples = of_kind(kernel.sample([]), ThreadSample)
            since.append({one.tid: one.site_since_ns for one in samples})
    assert since[0].keys() == since[1].keys()
    for tid, first_ns in since[0].items():
        assert since[1][tid] == pytest.approx(first_ns, abs=10_000_000)


def _kernel_objects(pid: int) -> set[tuple[str, int]]:
    """(kind, id) of every BPF program, map and link that a process holds."""
    found = set()
    for info in list(Path(f"/proc/{pid}/fdinfo").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            text = info.read_text()
            for kind, number in re.findall(r"^(prog|map|link)_id:\s*(\d+)$", text, re.MULTILINE):
                found.add((kind, int(number)))
    return found


def _exists(kind: str, number: int) -> bool:
    return outcome("bpftool", kind, "show", "id", str(number)).returncode == 0


@pytest.mark.needs("bpftool")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_bpf_object_stays_when_the_sensor_is_killed(number: int) -> None:
    with running(*script("kernel.sample([]); print('ready', flush=True); time.sleep(60)")) as one:
        assert one.line() == "ready"
        held = _kernel_objects(one.pid)
        assert {kind for kind, _ in held} == {"prog", "map", "link"}
        assert all(_exists(*pair) for pair in held)
        os.kill(one.pid, number)
        one.wait()
    until(lambda: not any(_exists(*pair) for pair in held), "the kernel to take all back")


def test_closing_the_sampler_gives_everything_back() -> None:
    before = _kernel_objects(os.getpid())
    with KernelSampler.open(Settings()) as kernel:
        kernel.watch(me := Pid(os.getpid()))
        kernel.sample([me])
        assert len(_kernel_objects(os.getpid()) - before) > 10
    assert _kernel_objects(os.getpid()) == before


def test_the_sampler_works_with_the_capabilities_it_keeps() -> None:
    done = outcome(
        *script("""
            capabilities.drop()
            pid = os.getpid()
            kernel.watch(pid)
            kernel.request(pid, SampleRequest(Detail.ALL, every=1))
            print(len(kernel.sample([pid])) >= 3)
            print(sorted(capabilities.effective()))
            show = ["sh", "-c", "grep CapEff /proc/self/status"]
            child = os.posix_spawn("/bin/sh", show, {})
            os.waitpid(child, 0)
            print(len(kernel.wait(0.2)) >= 3)
        """)
    )
    lines = done.stdout.splitlines()
    full = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    assert lines[:2] == ["True", str(sorted(int(one) for one in KEPT))], done
    assert full is not None
    assert f"CapEff:\t{full[1]}" in lines, (
        "a job that root starts afterwards has its full privileges"
    )
    assert lines[-1] == "True"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["setpriv", "--reuid=65534", "--clear-groups"], "missing CAP_BPF and CAP_PERFMON"),
        (["setpriv", "--inh-caps=-all", "--bounding-set=-all"], "missing CAP_BPF and CAP_PERFMON"),
        (
            ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs t /sys/kernel/btf; exec "$@"', "sh"],
            "this kernel has no type information",
        ),
    ],
    ids=["no root", "no capabilities", "no BTF"],
)
def test_what_is_missing_is_said_in_one_line(command: list[str], expected: str) -> None:
    done = outcome(*command, *script(""))
    assert done.returncode == 3, done
    assert expected in done.stdout
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


REFUSED = """
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "emit.bpf.h"
char LICENSE[] SEC("license") = "Dual BSD/GPL";
SEC("tp_btf/sched_process_exec") int good(void *ctx) { return !watched(1); }
SEC("tp_btf/no_such_tracepoint") int absent(void *ctx) { return 0; }
SEC("tp_btf/sched_process_exit") int unsafe(__u64 *ctx) { return *(int *)(ctx[0] + 1000000); }
"""


def _object(folder: Path, source: str) -> None:
    (folder / "family.bpf.c").write_text(source)
    target = "x86" if os.uname().machine == "x86_64" else "arm64"
    include = f"/usr/include/{os.uname().machine}-linux-gnu"
    flags = ["-g", "-O2", "-target", "bpf", f"-D__TARGET_ARCH_{target}", "-isystem", include]
    files = ["-I", str(ROOT / "bpf"), "-c", str(folder / "family.bpf.c")]
    output = ["-o", str(folder / "family.bpf.o")]
    subprocess.run(["clang-14", *flags, *files, *output], check=True, timeout=60)


FAMILY = probes.Family(
    "family",
    (
        probes.Probe("good", "execs"),
        probes.Probe("absent", "things that never happen"),
        probes.Probe("unsafe", "wild memory"),
    ),
)


@pytest.mark.needs("clang")
def test_a_refused_probe_costs_that_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _object(tmp_path, REFUSED)
    base = probes.load_family(probes.FAMILIES[0], {}, Settings())
    monkeypatch.setattr(probes, "object_folder", lambda: tmp_path)
    assert base.object is not None
    loaded = probes.load_family(FAMILY, base.object.maps, Settings())
    loaded.close()
    base.close()
    by_name = {status.probe: status for status in loaded.statuses}
    assert by_name["good"].attached
    assert not by_name["good"].reason
    assert not by_name["absent"].attached
    assert "no_such_tracepoint" in by_name["absent"].reason
    assert by_name["absent"].refusal is probes.Refusal.NO_HOOK
    assert not by_name["unsafe"].attached
    assert "beyond struct task_struct" in by_name["unsafe"].reason
    assert by_name["unsafe"].refusal is probes.Refusal.REFUSED
    assert by_name["unsafe"].blind_to == "wild memory"


@pytest.mark.needs("clang")
def test_a_refused_base_is_an_error_of_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _object(tmp_path, REFUSED)
    monkeypatch.setattr(probes, "object_folder", lambda: tmp_path)
    held = _kernel_objects(os.getpid())
    base = probes.Family("family", FAMILY.probes, required=True)
    with pytest.raises(LoadError) as caught:
        KernelSampler.open(Settings(), [base])
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.exit_code == 3
    assert _kernel_objects(os.getpid()) == held
