"""How `run -- CMD` ends: exit codes, signals, and that nothing is left behind."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.kernel.command import COMMAND, done, environment, is_alive, run, shell
from tests.waiting import until

pytestmark = pytest.mark.needs("cgroup2")
USED_BYTES = 1 << 30
"""Of a rank: takes the kernel some 50 ms to free."""


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 75", 75),
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
        ("kill -TERM $$", 143),
    ],
)
def test_the_job_keeps_its_exit_code(script: str, code: int, tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell(script), folder=tmp_path) as one:
        assert one.finish() == code
    events = one.events()
    assert events[0]["event"] == "start"
    assert events[0]["argv"] == shell(script)
    assert events[0]["target"] == "command"
    assert events[-1]["event"] == "end"
    assert events[-1]["reason"] == "exited"
    assert events[-1]["exit_code"] == code
    assert events[-1]["job_code"] == (code if code < 128 else 128 - code)


def test_with_json_the_job_writes_to_our_stderr(tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell("echo out; echo err >&2"), folder=tmp_path) as one:
        assert one.finish() == 0
    assert one.events()
    assert one.err.splitlines() == ["out", "err"]


def test_with_text_the_job_keeps_its_stdout(tmp_path: Path) -> None:
    with run("--", *shell("echo out; echo err >&2"), folder=tmp_path) as one:
        assert one.finish() == 0
    assert "out" in one.out.splitlines()
    assert one.err == "err\n"
    assert "the job ended with exit code 0" in one.out


def test_the_job_gets_stdin_environment_folder_and_descriptors(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    script = f"cat; echo $WORD; pwd; echo passed > /proc/self/fd/{writer}"
    ended = done(
        *("run", "-o", "json", "--", *shell(script)),
        folder=tmp_path,
        stdin="typed\n",
        env=environment(WORD="kept"),
        pass_fds=(writer,),
    )
    os.close(writer)
    assert ended.stderr.splitlines() == ["typed", "kept", str(tmp_path)]
    assert os.read(reader, 100) == b"passed\n"
    os.close(reader)


def test_what_a_first_process_leaves_behind_is_killed(tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell("sleep 100 & exit 4"), folder=tmp_path) as one:
        assert one.finish() == 4
    assert "1 processes it left behind were killed" in one.events()[-1]["text"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_ends_the_job(number: signal.Signals, tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell("sleep 100 & sleep 100"), folder=tmp_path) as one:
        members = one.await_members(3)
        one.send(number)
        assert one.finish() == 128 + number
        assert not any(is_alive(pid) for pid in members)
        assert not one.group.exists()
    assert one.events()[-1]["reason"] == "signal"
    # What a job does while the user ends it is no fault.
    assert {event.get("verdict", "WORKING") for event in one.events()} == {"WORKING"}


def test_a_deaf_job_is_killed_after_the_grace(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('grace = "700ms"\n')
    script = shell("trap '' TERM; while :; do sleep 1; done")
    with run("--policy", "policy.toml", "--", *script, folder=tmp_path) as one:
        one.await_members(2)
        begin = time.monotonic()
        one.send(signal.SIGTERM)
        assert one.finish() == 143
        assert time.monotonic() - begin >= 0.7


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('grace = "1h"\n')
    script = shell("trap '' TERM INT; while :; do sleep 1; done")
    with run("--policy", "policy.toml", "--", *script, folder=tmp_path) as one:
        one.await_members(2)
        one.send(signal.SIGINT)
        time.sleep(0.5)
        assert one.process.poll() is None
        one.send(signal.SIGINT)
        assert one.finish() == 130


def test_a_hangup_under_nohup_does_not_end_the_job(tmp_path: Path) -> None:
    with run("--", *shell("sleep 1; exit 6"), folder=tmp_path, prefix=["nohup"]) as one:
        one.await_members(2)
        one.send(signal.SIGHUP)
        assert one.finish() == 6


def test_the_job_lives_on_when_we_are_killed(tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell("sleep 2; touch lived"), folder=tmp_path) as one:
        members = one.await_members(2)
        supervisor = one.supervisor()
        one.send(signal.SIGKILL)
        # No other process may hold our standard output: a reader must see its end.
        assert one.reap() == -9
        assert all(is_alive(pid) for pid in members)
        until((tmp_path / "lived").exists, "the job to continue")
        until(lambda: not is_alive(supervisor), "the supervisor to leave")


def test_nothing_is_left_when_our_whole_process_group_is_killed(tmp_path: Path) -> None:
    with run("--", "sleep", "100", folder=tmp_path) as one:
        members = one.await_members(1)
        # it joins the control group first, and then the process group
        until(lambda: {os.getpgid(pid) for pid in members} == {one.pid}, "the job in our group")
        supervisor = one.supervisor()
        os.killpg(one.pid, signal.SIGKILL)
        one.finish()
        until(lambda: not is_alive(supervisor), "the supervisor to leave")
        assert not any(is_alive(pid) for pid in members)


def test_a_run_ends_when_its_time_is_over(tmp_path: Path) -> None:
    with run("--for", "1s", "-o", "json", "--", "sleep", "100", folder=tmp_path) as one:
        assert one.finish() == 0
    assert one.events()[-1]["reason"] == "time"
    assert one.events()[-1]["duration_s"] >= 1.0


def test_a_closed_pipe_does_not_cost_the_job(tmp_path: Path) -> None:
    with run("-o", "json", "--", *shell("sleep 1; touch lived; exit 5"), folder=tmp_path) as one:
        one.await_members(1)
        assert one.process.stdout is not None
        one.process.stdout.close()
        one.process.stdout = None
        assert one.finish() == 5
    assert (tmp_path / "lived").exists()


def test_a_command_that_cannot_be_executed_is_refused_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fnot a program")
    script.chmod(0o755)
    ended = done("run", "--", str(script), folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "kcover-ebpf: cannot start the command: Exec format error\n"


def test_the_job_has_all_our_privileges_and_the_sensor_few(tmp_path: Path) -> None:
    def capabilities(text: str) -> int:
        return int(
            next(line for line in text.splitlines() if line.startswith("CapEff")).split()[1], 16
        )

    script = shell("cat /proc/self/status >&2; touch reported; sleep 100")
    with run("-o", "json", "--", *script, folder=tmp_path) as one:
        until((tmp_path / "reported").exists, "the job to report its privileges")
        until(lambda: is_judging(one.pid), "the sensor to watch")
        ours = capabilities(Path(f"/proc/{one.pid}/status").read_text())
        rss_kb = resident_kb(one.pid)
        one.send(signal.SIGTERM)
        one.finish()
    mine = capabilities(Path("/proc/self/status").read_text())
    assert capabilities(one.err) == mine
    assert ours & mine == ours
    assert ours.bit_count() <= 4
    assert rss_kb < 60_000


def is_judging(pid: int) -> bool:
    """Its privileges are dropped once it has loaded its programs."""
    line = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("CapEff")
    )
    return int(line.split()[1], 16).bit_count() < 10


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_metrics_are_served_and_a_port_in_use_is_refused(tmp_path: Path) -> None:
    import socket
    import urllib.request

    arguments = ("--metrics", "127.0.0.1:0", "-o", "json", "--", "sleep", "100")
    with run(*arguments, folder=tmp_path) as one:
        assert one.process.stdout is not None
        port = json.loads(one.process.stdout.readline())["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        assert 'kcover_probe_attached{family="threads",probe="sample_threads"} 1.0' in text
        ended = done("run", "--metrics", f"127.0.0.1:{port}", "--", "true", folder=tmp_path)
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        # The job must not hold the port when we are gone.
        one.send(signal.SIGKILL)
        one.reap()
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))
        for pid in one.members():
            os.kill(pid, signal.SIGKILL)


def test_without_capabilities_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    import subprocess

    tmp_path.chmod(0o755)
    drop = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all"]
    probe = subprocess.run([*drop, COMMAND, "--version"], capture_output=True, check=False)
    if probe.returncode != 0:
        drop = ["setpriv", "--bounding-set", "-all", "--inh-caps=-all"]
    ended = subprocess.run(
        [*drop, COMMAND, "run", "--", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd="/",
    )
    assert ended.returncode == 3
    assert (
        ended.stderr == "kcover-ebpf: missing CAP_BPF and CAP_PERFMON: run as root, or grant them\n"
    )
    assert ended.stdout == ""


def test_without_type_information_of_the_kernel_nothing_is_started(tmp_path: Path) -> None:
    import subprocess

    hide = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
    for arguments in (["run", "--", "touch", "started"], ["trace", "--pid", str(os.getpid())]):
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", COMMAND, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=tmp_path,
        )
        assert ended.returncode == 3
        assert "no type information" in ended.stderr
        assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "started").exists()


def test_a_rank_whose_memory_is_being_freed_has_ended_once(tmp_path: Path) -> None:
    """Its group lists it until then: it was watched again, and ended once more, for no known reason."""
    program = (
        f"import time; used = bytearray({USED_BYTES}); used[::4096] = used[::4096]; time.sleep(99)"
    )
    script = f'for RANK in 0 1; do export RANK; python3 -c "{program}" & done; wait'
    with run("-o", "json", "--act=observe", "--", *shell(script), folder=tmp_path) as one:
        until(lambda: len(large(one.members())) == 2, "two ranks with their memory")
        time.sleep(2)
        rank = min(large(one.members()))
        os.kill(rank, signal.SIGKILL)
        time.sleep(5)
        one.send(signal.SIGTERM)
        one.finish()
    said = [event for event in one.events() if event.get("fact") == "process_exit"]
    ends = [(entry["signal"], entry["known"]) for entry in said if entry["pid"] == rank]
    assert ends == [(signal.SIGKILL, True)]


def large(pids: set[int]) -> set[int]:
    """Those that have their memory."""
    return {pid for pid in pids if resident_bytes(pid) > USED_BYTES}


def resident_bytes(pid: int) -> int:
    """What a process has of its memory; 0 of one that is gone."""
    try:
        words = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0
    return int(words[1]) * os.sysconf("SC_PAGESIZE")
