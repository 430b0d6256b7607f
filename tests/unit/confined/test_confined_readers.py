"""The readers of logs and of ranks as an agent has them: real processes, confined, over real files."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kcover_ebpf.agent.reader.client import ConfinedReader
from kcover_ebpf.agent.reader.logs import LogPlan
from kcover_ebpf.agent.reader.ranks import THREADS, ReadRanks
from kcover_ebpf.agent.reader.started import ConfinedReaders
from kcover_ebpf.api.job_rules import JobRule
from kcover_ebpf.api.known_lines import KnownLine
from kcover_ebpf.collectives.ras import RasError
from kcover_ebpf.collectives.ras.client import RasPatience, RasPlace
from kcover_ebpf.collectives.recorder.dump_request import RankRecorder, RequestError
from kcover_ebpf.confined.helper import Confinement
from kcover_ebpf.errors import ReaderError
from kcover_ebpf.facts.host import CodeSeen, ReadingRequest, ThreadReading
from kcover_ebpf.host import cgroups, over_bounds, procfs
from kcover_ebpf.host.elf_functions import ElfError
from kcover_ebpf.host.thread_reader import ThreadReadings
from kcover_ebpf.ids import Pid, Tid
from kcover_ebpf.logs.wanted_logs import WantedLog
from kcover_ebpf.watching import py_spy
from testbed.driver.fake_ras_server import json_report
from testbed.driver.recorder_dumps import dump, pickled, steps
from tests.unit.support.elf_files import built
from tests.waiting import until

pytestmark = pytest.mark.needs("root")
ME = Pid(os.getpid())
WANTED = WantedLog("ns", "j-0", "uid-0", "main")
PATIENCE_S = 60.0


class Node:
    """Readers, and the folder of the logs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        plan = LogPlan(folder, longest_phase_s=600)
        self.readers = ConfinedReaders(plan, cgroups.own_groups(), self.said.append)
        self.readers.start()
        assert self.readers.logs is not None
        self.logs, self.ranks = self.readers.logs, self.readers.ranks

    def log(self, text: str, container: str = "main") -> Path:
        path = self.folder / "ns_j-0_uid-0" / container / "0.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        now = time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime())
        path.write_text("".join(f"{now} stderr F {line}\n" for line in text.splitlines()))
        return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    made = Node(tmp_path_factory.mktemp("pods"))
    yield made
    made.readers.close()


# --- logs


def test_logs__what_a_log_shows_is_answered_and_its_end_for_a_bundle(node: Node) -> None:
    node.log("step 7\nOSError: [Errno 28] No space left on device\n")
    turn = node.logs.turn((WANTED,))
    (log,) = turn.logs
    assert (log.pod_uid, [finding.rule for finding in log.findings]) == ("uid-0", ["storage_full"])
    assert turn.read_bytes > 50
    assert node.logs.turn(None).logs[0].findings[0].count == 1
    tails = node.logs.tails("ns", ["uid-0"])
    assert list(tails) == ["j-0.main.log"]
    assert "No space left" in tails["j-0.main.log"]


def test_logs__rules_of_a_job_and_hints_of_its_program_are_read(node: Node) -> None:
    node.log("loss: 3.5\nkcover: phase evaluation up to 900 s\n", "rules")
    loss = JobRule("loss", KnownLine.LOSS, below=3.0, times=1)
    asked = WantedLog("ns", "j-0", "uid-0", "rules", (loss,))
    (log,) = [
        container_log
        for container_log in node.logs.turn((asked,)).logs
        if container_log.container == "rules"
    ]
    (reading,) = log.rules
    assert (reading.rule, reading.value, reading.broken) == ("loss", 3.5, True)
    assert log.phase is not None
    assert (log.phase.name, log.phase.refused) == ("evaluation", True), "600 s are allowed"
    more = (loss, JobRule("x", pattern="µ", every_seconds=9))
    turn = node.logs.turn((replace(asked, job_rules=more),))
    (log,) = [container_log for container_log in turn.logs if container_log.container == "rules"]
    assert [rule.rule for rule in log.rules] == ["loss", "x"]


def test_logs__as_many_logs_and_rules_as_a_node_may_have_are_asked_for_at_once(node: Node) -> None:
    rules = [JobRule(f"r{n}", pattern=f"{n}" + "µ" * 490, every_seconds=9) for n in range(64)]
    wanted = [
        WantedLog("ns", "j-9", f"uid-{n}", "main", tuple(rules[n % 8 * 8 : n % 8 * 8 + 8]))
        for n in range(256)
    ]
    assert node.logs.turn(wanted).read_bytes == 0


@pytest.mark.parametrize("kind", ["link", "fifo", "device"])
def test_tails__what_is_no_log_is_not_opened(node: Node, tmp_path: Path, kind: str) -> None:
    """A bundle that follows a link shows what the agent may read; one that opens a pipe waits for ever."""
    secret = tmp_path / "token"
    secret.write_text("the agent's own token")
    path = node.folder / "ns_j-1_uid-1" / "main" / "0.log"
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(parents=True)
    match kind:
        case "link":
            path.symlink_to(secret)
        case "fifo":
            os.mkfifo(path)
        case _:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
    (text,) = node.logs.tails("ns", ["uid-1"]).values()
    assert text.startswith("not read: ")


def test_tails__what_the_program_printed_of_its_secrets_does_not_leave_the_reader(
    node: Node,
) -> None:
    """Also one of which the end that is read has a part alone, without the name in front of it."""
    secret = "s3cr3t-0451"
    text = f"API_KEY={secret}\n" + "step 7 loss 2.5\n" * 900 + f"connecting with --token {secret}\n"
    node.log(text, "talks")
    assert "--token [masked]" in node.logs.tails("ns", ["uid-0"])["j-0.talks.log"]
    node.log(f"API_KEY={secret * 3000}\n" + "step 7 loss 2.5\n" * 60, "cut")
    tails = node.logs.tails("ns", ["uid-0"])
    assert secret not in "".join(tails.values())
    assert tails["j-0.cut.log"].endswith("step 7 loss 2.5\n")


def test_logs__a_folder_of_another_namespace_is_not_read(node: Node) -> None:
    node.log("hello")
    assert node.logs.tails("other", ["uid-0"]) == {}


# --- ranks


def test_ranks__a_thread_that_waits_is_read_as_here(node: Node) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        pid = Pid(child.pid)
        until(lambda: procfs.task_state(pid) == "S" and procfs.comm(pid) == "sleep")
        until(node.readers._readers[0]._up.is_set)
        found = node.ranks.reading(ReadingRequest(pid, Tid(pid), procfs.boottime_ns()))
        child.kill()
    assert isinstance(found, ThreadReading)
    assert (found.pid, found.timed, "nanosleep" in found.wait_channel) == (pid, True, True)
    assert found.devices == frozenset()


def test_ranks__who_has_a_file_open_is_read_and_only_what_was_asked_for_is_taken(
    node: Node, tmp_path: Path
) -> None:
    (tmp_path / "held").touch()
    here, paths = Pid(os.getpid()), [str(tmp_path / "held"), str(tmp_path / "other")]
    with (tmp_path / "held").open():
        found = node.ranks.open_files([here, Pid(2**22)], paths)
    assert found == {here: {paths[0]}, Pid(2**22): frozenset()}


CROWDED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
for _ in range(16_500):
    os.dup(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_ranks__what_a_reader_found_over_its_bound_is_in_the_metric_of_the_agent(
    node: Node,
) -> None:
    command = [sys.executable, "-S", "-c", CROWDED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        before = over_bounds.counts()["descriptors"]
        assert node.ranks.open_files([Pid(child.pid)], ["/x"]) == {child.pid: set()}
        assert over_bounds.counts()["descriptors"] == before + 1
        node.ranks.open_files([ME], ["/x"])
        assert over_bounds.counts()["descriptors"] == before + 1, "each is counted once"
        child.kill()


def test_ranks__without_a_reader_open_files_are_read_here(tmp_path: Path) -> None:
    (tmp_path / "held").touch()
    gone = ConfinedReader("none", THREADS, lambda *_: None)
    gone.close()
    with (tmp_path / "held").open():
        found = ReadRanks(gone, gone).open_files([Pid(os.getpid())], [str(tmp_path / "held")])
    assert found == {os.getpid(): {str(tmp_path / "held")}}


def test_ranks__where_a_burning_thread_is_comes_with_the_files_that_are_mapped(node: Node) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        pid = Pid(child.pid)
        until(lambda: "python" in procfs.comm(pid) and _has_started(pid))
        asked = ReadingRequest(pid, Tid(pid), 0, burning_sp=_stack_end(pid), wants_modules=True)
        until(node.readers._readers[0]._up.is_set)
        here = ThreadReadings(os.uname().machine).reading(asked)
        found = node.ranks.reading(asked)
        child.kill()
    assert isinstance(found, CodeSeen)
    assert isinstance(here, CodeSeen)
    assert found.modules == here.modules
    assert any(module.name.startswith("libc") for module in found.modules)


def _has_started(pid: int) -> bool:
    """Its libraries are mapped: it has burned a CPU for a while."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11] not in "0123456789"


def _stack_end(pid: int) -> int:
    (line,) = (
        line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "[stack]" in line
    )
    return int(line.split("-")[1].split()[0], 16) - 2048


def recorder(folder: Path) -> RankRecorder:
    start_ns = procfs.start_ns(ME)
    assert start_ns is not None
    return RankRecorder(ME, 3, start_ns, f"{folder}/fr_3.pipe", f"{folder}/dump_3")


def test_ranks__a_recorder_is_asked_and_read(node: Node, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fr_3.pipe")
    reader = os.open(tmp_path / "fr_3.pipe", os.O_RDONLY | os.O_NONBLOCK)
    mark = node.ranks.request(recorder(tmp_path))
    assert (mark, os.read(reader, 10)) == (None, b"1")
    os.close(reader)
    (tmp_path / "dump_3").write_bytes(pickled(dump(steps(5, ends="all_reduce"))))
    _, record = node.ranks.fetch(recorder(tmp_path), mark)
    assert not isinstance(record, str)
    assert record.groups[0].pending[0].place == "/jobs/train.py:40 (step)"


def test_ranks__a_dump_that_is_a_bomb_costs_the_reader_alone(node: Node, tmp_path: Path) -> None:
    bomb = b'{"a": [' + b"[[]]," * 1_300_000 + b"[]]}"
    (tmp_path / "dump_3").write_bytes(bomb)
    before_kb = _peak_kb()
    try:
        _, found = node.ranks.fetch(recorder(tmp_path), None)
    except RequestError as error:
        found = str(error)
    assert isinstance(found, str)
    assert found
    assert _peak_kb() - before_kb < 20_000
    until(lambda: _answers(node, tmp_path))


def _answers(node: Node, folder: Path) -> bool:
    (folder / "dump_3").write_bytes(b"no dump")
    try:
        return isinstance(node.ranks.fetch(recorder(folder), None)[1], str)
    except RequestError:
        return False


def _peak_kb() -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", text)
    assert found is not None
    return int(found[1])


def test_ranks__what_nccl_answers_is_read_over_our_connection(node: Node) -> None:
    report = json_report([7, 7, 6])
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(server, report), daemon=True).start()
    place = RasPlace(server.getsockname()[:2], ME, {102: ME})
    found = node.ranks.ask(place, RasPatience(connect_s=20.0, collect_s=20.0))
    (communicator,) = found.communicators
    assert [rank.total for rank in communicator.ranks] == [8, 8, 7]
    server.close()
    with pytest.raises(RasError):
        node.ranks.ask(place, RasPatience(connect_s=0.2, collect_s=0.2, tries=1))


def _serve(server: socket.socket, report: str) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rw") as stream:
        for line in stream:
            match line.split()[0]:
                case "CLIENT":
                    stream.write("SERVER PROTOCOL 2\n")
                case "VERBOSE":
                    stream.write(report)
                    stream.flush()
                    return
                case _:
                    stream.write("OK\n")
            stream.flush()


@pytest.mark.needs("gcc")
def test_ranks__functions_are_found_in_an_open_file(node: Node, tmp_path: Path) -> None:
    with built(tmp_path).open("rb") as file:
        assert list(node.ranks.functions(file.fileno(), ["ncclAllReduce", "other"])) == [
            "ncclAllReduce"
        ]
    with Path(__file__).open("rb") as file, pytest.raises(ElfError, match="not a 64-bit ELF file"):
        node.ranks.functions(file.fileno(), ["ncclAllReduce"])


# --- what they may do


def test_readers__have_few_capabilities(node: Node, tmp_path: Path) -> None:
    node.log("x")
    node.logs.turn((WANTED,))
    _answers(node, tmp_path)
    until(node.readers._readers[0]._up.is_set)
    found = {}
    for reader in node.readers._readers:
        status = Path(f"/proc/{reader.pid}/status").read_text()
        words = dict(re.findall(r"^(\w+):\s+(\w+)", status, re.MULTILINE))
        masks = (int(words["CapPrm"], 16), int(words["CapEff"], 16))
        found[reader.name] = (*masks, words["NoNewPrivs"], words["Seccomp"])
    logs, threads, answers = 1 << 2, 1 << 19 | 1 << 2, 1 << 19 | 1 << 2 | 1 << 1
    assert found == {
        "logs": (logs, logs, "1", "2"),
        "threads": (threads, threads, "1", "2"),
        "answers": (answers, answers, "1", "2"),
    }


@pytest.mark.needs("cgroup2")
def test_readers__the_kernel_refuses_device_nodes_to_them(node: Node, tmp_path: Path) -> None:
    if not node.readers.refuses_devices:
        assert "the readers are not denied access to device nodes" in node.said[0]
        pytest.skip(node.said[0])
    entrance = node.readers.spies.group
    assert entrance is not None
    wanted = {(1, 3): "opened", (1, 7): "refused", (1, 9): "opened", (10, 229): "refused"}
    for numbers in wanted:
        os.mknod(
            tmp_path / f"{numbers[0]}-{numbers[1]}", stat.S_IFCHR | 0o666, os.makedev(*numbers)
        )
    program = f"""
import os
for numbers in {list(wanted)}:
    try:
        os.close(os.open({str(tmp_path)!r} + "/%d-%d" % numbers, os.O_RDONLY))
        print("opened")
    except PermissionError:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        preexec_fn=lambda: os.write(entrance, b"0"),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == list(wanted.values())


MAPS_A_FILE = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("cgroup2")
def test_spies__a_device_in_the_place_of_a_mapped_library_is_not_opened(
    node: Node, tmp_path: Path
) -> None:
    """Without the group py-spy opens it, as root: what opening a watchdog does, it then has done."""
    library = tmp_path / "libpython3.11.so.1.0"
    library.write_bytes(b"\x7fELF" + b"\0" * 4092)
    command = [sys.executable, "-c", MAPS_A_FILE, str(library)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        library.unlink()
        place = next(
            line.split(maxsplit=5)[5].rstrip("\n")
            for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines()
            if library.name in line
        )
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 7))
        opened = [
            _opens(place, child.pid, confinement)
            for confinement in (py_spy.SPY, node.readers.spies)
        ]
        child.kill()
    assert opened == ([True, False] if node.readers.refuses_devices else [True, True])


def _opens(place: str, pid: int, confinement: Confinement) -> bool:
    libc = ctypes.CDLL(None)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, place.encode(), 0x20)  # IN_OPEN
    spies = py_spy.Spies([pid], confinement)
    spies.collect(PATIENCE_S, {})
    try:
        return bool(os.read(watch, 4096))
    except BlockingIOError:
        return False
    finally:
        os.close(watch)


def test_readers__an_agent_that_is_killed_leaves_none(tmp_path: Path) -> None:
    program = f"""
import signal, sys, time
from pathlib import Path
from kcover_ebpf.agent.reader.logs import LogPlan
from kcover_ebpf.agent.reader.started import ConfinedReaders
readers = ConfinedReaders(LogPlan(Path({str(tmp_path)!r})), (), lambda _: None)
readers.start()
readers.logs.tails("ns", [])
while not all(each.pid for each in readers._first):
    time.sleep(0.01)
print(*(each.pid for each in readers._first), flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        pids = list(map(int, agent.stdout.readline().split()))
        assert len(pids) == 2
        agent.send_signal(signal.SIGKILL)
    until(lambda: all(procfs.task_state(pid) in ("", "Z") for pid in pids))


def test_reading__without_a_reader_a_thread_is_not_waited_for(node: Node) -> None:
    """A reading that does not return in a second would be taken for a process that cannot be read."""
    readers = ConfinedReaders(None, (), node.said.append)
    request = ReadingRequest(ME, Tid(ME), 0)
    with pytest.raises(ReaderError, match="is not running"):
        readers.ranks.reading(request)
    until(readers._readers[0]._up.is_set)
    assert isinstance(readers.ranks.reading(request), ThreadReading)
    readers.close()


def test_reading__what_is_not_there_is_an_error_in_time(node: Node) -> None:
    with pytest.raises(ReaderError, match="there is no such operation"):
        node.readers._readers[0].ask("dance", {}, PATIENCE_S)
