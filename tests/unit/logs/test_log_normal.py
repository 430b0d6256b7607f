"""One step before all rules: a line is recognised whatever carries it, and numbers and costs stay what they are."""

from __future__ import annotations

import json

import pytest

from kcover_ebpf.devices.catalog.files import shipped as catalog
from kcover_ebpf.logs import heads, rules
from kcover_ebpf.logs.container_log import ContainerLogReader
from kcover_ebpf.logs.levels import LogLevel
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.log_files import Chunk
from kcover_ebpf.logs.normal import normal
from kcover_ebpf.logs.reader import LogReader, Match

TIME = "2026-11-28T10:00:00.5Z"
NOW_S = 1_795_860_060.0
PLAIN = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 42, in <module>',
    "    main()",
    "    ~~~~^^",
    '  File "/app/train.py", line 17, in main',
    "    step(batch)",
    "TypeError: 'NoneType' object is not subscriptable",
)
COLOURED = (
    PLAIN[0],
    '  File \x1b[35m"/app/train.py"\x1b[0m, line \x1b[35m42\x1b[0m, in \x1b[35m<module>\x1b[0m',
    "    \x1b[31mmain\x1b[0m\x1b[1;31m()\x1b[0m",
    '  File \x1b[35m"/app/train.py"\x1b[0m, line \x1b[35m17\x1b[0m, in \x1b[35mmain\x1b[0m',
    "\x1b[1;35mTypeError\x1b[0m: \x1b[35m'NoneType' object is not subscriptable\x1b[0m",
)
BAR = "".join(
    f"\r {n % 101:3d}%|{'#' * 40}| {n}/99999 [00:{n % 60:02d}<00:00, 9.1it/s]" for n in range(1200)
)
LEVEL = "ERROR 11-28 10:00:00 [worker.py:88] "
# What is in front of each line, and the rank that it states.
HEADS = {
    "torch": ("[rank3]: ", 3),
    "torchrun --tee": ("[default0]:", None),
    "torchrun --tee with torch": ("[default0]:[rank3]: ", 3),
    "a named role": ("[trainer7]:", None),
    "srun -l": ("  3: ", 3),
    "pdsh": ("worker-1: ", None),
    "pdsh by address": ("10.0.0.7: ", None),
    "pdsh with torch": ("worker-1: [rank9]: ", 9),
    "Open MPI 4": ("[1,3]<stderr>:", 3),
    "PRRTE": ("[prterun-host-7@1,3]<stderr>: ", 3),
    "Horovod": ("[3]<stderr>:", 3),
    "Intel MPI": ("[3] ", None),
    "Ray": ("(RayTrainWorker pid=4123, ip=10.0.0.7) ", None),
    "Ray in colour": ("\x1b[36m(RayTrainWorker pid=4123)\x1b[0m ", None),
    "vLLM": (f"(Worker_PP1 pid=4123) {LEVEL}", None),
    "SGLang": ("[2026-11-28 10:00:00 DP1 TP3] ", None),
    "a shipper": ("[2026-11-28T10:00:00.106313Z] fa88a9df || ", None),
    "kubectl logs --prefix": ("[pod/trainer-3/main] ", None),
    "Docker Compose": ("trainer-1  | ", None),
    "Python's logging": ("2026-11-28 10:00:00,123 - root - ERROR - ", None),
    "logging.basicConfig": ("ERROR:root:", None),
    "loguru": ("2026-11-28 10:00:00.123 | ERROR    | __main__:main:12 - ", None),
    "DeepSpeed": ("[2026-11-28 10:00:00,167] [ERROR] [engine.py:321:step] ", None),
    "glog": ("E1128 10:00:00.123456  4711 loop.cc:12] ", None),
    "NeMo": ("[NeMo E 2026-11-28 10:00:00 loop:12] ", None),
    "Hugging Face": ("[ERROR|trainer.py:12] 2026-11-28 10:00:00,123 >> ", None),
    "Ascend": ("[ERROR] 2026-11-28-10:00:00 (PID:9, Device:3, RankID:3) ", 3),
}


def cri(text: str, tag: str = "F") -> str:
    return f"{TIME} stderr {tag} {text}\n"


def docker(text: str) -> str:
    fields = {"log": f"{text}\n", "stream": "stderr", "time": TIME}
    return json.dumps(fields, separators=(",", ":")) + "\n"


def crash(head: str, text: tuple[str, ...] = PLAIN) -> str:
    return "".join(cri(head + line) for line in text)


def long_line(text: str) -> str:
    """As containerd writes it."""
    pieces = [text[at : at + 16384] for at in range(0, len(text), 16384)]
    return "".join(cri(piece, "P") for piece in pieces[:-1]) + cri(pieces[-1])


def record(**fields: object) -> str:
    return cri(json.dumps(fields))


def container(log: str | bytes) -> list[tuple[str, str | None]]:
    """Rule and place of the tracebacks that the agent finds."""
    data = log.encode() if isinstance(log, str) else log
    reader = ContainerLogReader(
        "uid",
        "main",
        [rule for rule in rules.shipped() if rule.source is Source.CONTAINER],
    )
    reader.feed(Chunk(0, data, is_first=True), NOW_S)
    shown = reader.summary(NOW_S)
    return [] if shown is None else [(found.rule, found.place) for found in shown.tracebacks]


def matches(log: str | bytes, source: Source = Source.UNKNOWN) -> list[Match]:
    reader = LogReader(rules.shipped(), catalog(), source=source)
    data = log.encode() if isinstance(log, str) else log
    return [*reader.feed(data), *reader.finish()]


CRASHES = {
    **{name: crash(head) for name, (head, _) in HEADS.items()},
    "Python 3.13 in colour": crash("", COLOURED),
    "colour behind a rank": crash("[rank3]: ", COLOURED),
    "a progress bar that is not ended": long_line(BAR[:10000] + PLAIN[0]) + crash("", PLAIN[1:]),
    "a minute of a progress bar": long_line(BAR + PLAIN[0]) + crash("", PLAIN[1:]),
    "Docker": "".join(docker(line) for line in PLAIN),
    "Docker and torch": "".join(docker(f"[rank3]: {line}") for line in PLAIN),
    "a JSON record": record(level="error", msg="\n".join(PLAIN)),
    "a JSON record with the traceback apart": record(
        levelname="ERROR", message="failed", exc_info="\n".join(PLAIN)
    ),
    "loguru's JSON": record(text="\n".join(PLAIN) + "\n", record={"level": {"name": "ERROR"}}),
    "a JSON record of Docker's": docker(json.dumps({"level": 50, "msg": "\n".join(PLAIN)})),
    "lines that end as on Windows": "".join(cri(f"{line}\r") for line in PLAIN),
    "a message in front of its first line": crash(
        "", (f"Scheduler hit an exception: {PLAIN[0]}", *PLAIN[1:])
    ),
    "a logger's head in front of its first line": crash("", (LEVEL + PLAIN[0], *PLAIN[1:])),
    "an exception group": crash(
        "",
        (
            "  + Exception Group Traceback (most recent call last):",
            *(f"  | {line}" for line in PLAIN[1:-1]),
            "  | ExceptionGroup: 2 shards failed (2 sub-exceptions)",
            "  +-+---------------- 1 ----------------",
            "    +------------------------------------",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("log", CRASHES.values(), ids=CRASHES)
def test_log_normal__a_crash_is_found_whatever_carries_it(log: str) -> None:
    assert container(log) == [("python_error", "train.py:17")]


def test_log_normal__the_member_of_an_exception_group_is_found_as_well() -> None:
    group = crash(
        "",
        (
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/app/train.py", line 3, in <module>',
            "  | ExceptionGroup: 2 shards failed (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "/app/save.py", line 9, in save',
            "    | PermissionError: cannot write the shard",
            "    +------------------------------------",
        ),
    )
    assert container(group) == [("python_error", "train.py:3"), ("permission_denied", "save.py:9")]


HANDLED = {
    "Python ignores an error in a finaliser": crash(
        "", ("Exception ignored in: <function Loader.__del__ at 0x7f>", *PLAIN)
    ),
    "a logger calls it a warning": crash("WARNING 11-28 10:00:00 [worker.py:88] "),
    "a JSON record calls it a warning": record(level="warning", msg="\n".join(PLAIN)),
}


@pytest.mark.parametrize("log", HANDLED.values(), ids=HANDLED)
def test_log_normal__a_traceback_that_was_handled_is_no_crash(log: str) -> None:
    assert container(log) == []


@pytest.mark.parametrize(("head", "rank"), HEADS.values(), ids=HEADS)
def test_heads__what_was_stripped_is_kept(head: str, rank: int | None) -> None:
    head = normal(f"{head}\n".encode()).decode().removesuffix("\n")
    found = heads.split(f"{head}KeyError: 'x'")
    assert (found.text, found.rank) == ("KeyError: 'x'", rank)
    assert found.process == heads.split(f"{head}ValueError: y").process


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: x",
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "ModuleNotFoundError: No module named 'x'",
        "RuntimeError: [1] is setting up",
        '  File "/app/train.py", line 3, in <module>',
        "Fatal Python error: Segmentation fault",
        "NCCL WARN Cuda failure 719",
        "step 12 loss 0.3",
        "训练失败 RuntimeError: x",
        "",
    ],
)
def test_heads__a_message_alone_has_none(text: str) -> None:
    assert heads.split(text) == heads.Head(text)


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("[W socket.cpp:601] [c10d] The IPv6 network addresses cannot be retrieved", LogLevel.WARNING),
        ("[rank1]:[E1122 10:00:00.123 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog", LogLevel.ERROR),
        ("W1130 12:13:49.388000 124326 torch/elastic/api.py:723] Received", LogLevel.WARNING),
        ("2026-11-28 10:00:00.123456: E tensorflow/core/x.cc:12] failed", LogLevel.ERROR),
        ("(raylet) [2026-11-28 09:57:19,206 E 39 39] (raylet) node_manager.cc:3277: killed", LogLevel.ERROR),
        ("node1:77:301 [0] NCCL INFO Channel 00", LogLevel.INFO),
        ("libfabric:451:170::efa:cq:efa_rdm_txe_handle_error():737<warn> err: 5", None),
        ("[16306.549719] [node01:33913:1] ib_device.c:482  UCX  WARN  IB Async event", LogLevel.WARNING),
        ("/app/x.py:12: UserWarning: guessing", LogLevel.WARNING),
        ("[error] x", LogLevel.ERROR),
        ("INFO:2026-02-03 10:00:00,123:jax._src.xla_bridge:895: Unable to initialize", LogLevel.INFO),
        ("urllib3.connectionpool WARNING Retrying after connection broken", LogLevel.WARNING),
        ("Error loading the model", None),
        ("node1:77:301 [0] NCCL WARN Cuda failure 719", None),
    ],
)  # fmt: skip
def test_heads__the_level_of_a_line(line: str, level: LogLevel | None) -> None:
    assert heads.split(line).level is level


MILD = {
    "a warning": "WARNING: cannot use it: ModuleNotFoundError: No module named 'apex'",
    "information": "INFO:root:flash_attn not available (ImportError: libcudart.so.11.0)",
    "a retry": "ConnectionResetError: [Errno 104] Connection reset by peer, retrying in 5 s",
    "the second try of five": "attempt 2/5: requests.exceptions.ConnectionError: x",
    "a record of JSON": '{"level": "warn", "msg": "botocore.exceptions.ReadTimeoutError: x"}',
    "a class of Python's warnings": "/a/b.py:7: RuntimeWarning: loss: nan",
    "c10d's warning of a device": "[W1122 10:00:00.123 ProcessGroupNCCL.cpp:1] CUDA error: uncorrectable ECC error",
    "what it does without": "ImportError: no flash_attn, falling back to sdpa",
    "what it reads": "prompt: what is CUDA out of memory?",
    "a sample of its data": '{"text": "RuntimeError: CUDA error: device-side assert triggered", "id": 12}',
    "a best value so far": "best loss: inf",
}


@pytest.mark.parametrize("line", MILD.values(), ids=MILD)
def test_reader__what_its_writer_calls_harmless_is_no_error(line: str) -> None:
    for carried in (line, cri(line)):
        (match,) = matches(carried)
        assert match.severity in ("warning", "info")
        assert (match.concerns, match.lasting) == ("job", False)


GRAVE = [
    "attempt 5/5: requests.exceptions.ConnectionError: x",
    "ERROR: CUDA error: uncorrectable ECC error encountered",
    "requests.exceptions.ConnectionError: Max retries exceeded with url: /x",
    "node1:77:301 [0] NCCL WARN Cuda failure 719 'unspecified launch failure'",
]


@pytest.mark.parametrize("line", GRAVE)
def test_reader__an_error_stays_one(line: str) -> None:
    (match,) = matches(cri(line))
    assert match.severity in ("error", "fatal")


XID = "NVRM: Xid (PCI:0000:cb:00): 48, pid=1797, name=pt_main_thread, DBE (double bit error)"
KERNEL_LOGS = {
    "journalctl -o json": json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel", "PRIORITY": "3"}),
    "journalctl -o short-monotonic": f"[   10.123456] gpu-7 kernel: {XID}",
    "journalctl -o short-unix": f"1795860060.123456 gpu-7 kernel: {XID}",
    "journalctl -o short-full": f"Sat 2026-11-28 10:00:00 UTC gpu-7 kernel: {XID}",
    "talosctl dmesg": f"10.5.0.2: kern:    info: [2026-11-28T10:00:00.123456Z]: {XID}",
    "dmesg -r": f"<3>[   10.123456] {XID}",
    "dmesg -T -d": f"[Sat Nov 28 10:00:00 2026 <    0.000012>] {XID}",
    "dmesg -d -t": f"[<    0.000012>] {XID}",
    "dmesg of a kernel with CONFIG_PRINTK_CALLER": f"[   10.123456] [ T1234] {XID}",
    "dmesg --json": json.dumps({"dmesg": [{"pri": 3, "time": 10.123456, "msg": XID}]}),
    "dmesg --json, a member on each line": json.dumps(
        {"dmesg": [{"pri": 6, "msg": "x"}, {"pri": 3, "time": 10.123456, "msg": XID}]}, indent=3
    ),
    "dmesg --json, a record on each line": f'{{\n  "dmesg": [\n   {{"pri":3,"msg":"{XID}"}}\n  ]\n}}',
    "dmesg by pdsh": f"gpu-7: [   10.123456] {XID}",
    "syslog by grep": f"/var/log/kern.log:1234:Nov 28 10:00:00 gpu-7 kernel: {XID}",
    "syslog with the facility": f"Nov 28 10:00:00 gpu-7 kern.err kernel: [   10.123456] {XID}",
    "netconsole with the release": f"6.1.0-13-amd64,3,1234,10123456,-;{XID}",
    "journalctl -o json-pretty": (
        f'{{\n\t"MESSAGE" : "{XID}",\n\t"_TRANSPORT" : "kernel",\n\t"PRIORITY" : "3"\n}}'
    ),
    "journalctl -o json-sse": "data: " + json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel"}),
    "journalctl -o json-seq": "\x1e" + json.dumps({"MESSAGE": XID, "_TRANSPORT": "kernel"}),
    "journalctl -o verbose": (
        "Sat 2026-11-28 10:00:00.123456 UTC [s=1a;i=2;b=3;m=4;t=5;x=6]\n"
        f"    _TRANSPORT=kernel\n    SYSLOG_IDENTIFIER=kernel\n    MESSAGE={XID}"
    ),
    "RFC 5424": f"<3>1 2026-11-28T10:00:00.123456+00:00 gpu-7 kernel - - - {XID}",
}


@pytest.mark.parametrize("log", KERNEL_LOGS.values(), ids=KERNEL_LOGS)
def test_reader__the_kernels_log_in_every_form(log: str) -> None:
    for source in (Source.KERNEL, Source.UNKNOWN):
        (match,) = matches(log, source)
        assert (match.rule, match.line) == ("xid_48", XID)


FORGED = {
    "journalctl -o json": json.dumps(
        {"MESSAGE": XID, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}
    ),
    "journalctl -o json-pretty": (
        f'{{\n\t"MESSAGE" : "{XID}",\n\t"_TRANSPORT" : "syslog",\n\t"SYSLOG_IDENTIFIER" : "kernel"\n}}'
    ),
    "journalctl -o verbose": (
        "Sat 2026-11-28 10:00:00.123456 UTC [s=1a;i=2;b=3;m=4;t=5;x=6]\n"
        f"    _TRANSPORT=syslog\n    SYSLOG_IDENTIFIER=kernel\n    MESSAGE={XID}"
    ),
    "dmesg --json": json.dumps({"dmesg": [{"pri": 11, "time": 10.123456, "msg": XID}]}),
    "a program in the journal": f"Nov 28 10:00:00 gpu-7 trainer[4711]: {XID}",
    "a program and an NFS server": "Nov 28 10:00:00 gpu-7 trainer[4711]: nfs: server a not responding",
    "talosctl dmesg": f"10.5.0.2: user:    info: [2026-11-28T10:00:00.123456Z]: {XID}",
    "dmesg -r": f"<11>[   10.123456] {XID}",
    "what follows a return": f"user  :info  : [   10.123456] hello\r{XID}",
    "the second line of a record": f"user  :info  : [   10.123456] hello\n               {XID}",
}


@pytest.mark.parametrize("log", FORGED.values(), ids=FORGED)
def test_reader__what_user_space_wrote_into_the_kernels_log_is_refused(log: str) -> None:
    assert matches(log) == []


def test_reader__a_record_of_several_lines_is_read_to_its_end() -> None:
    log = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    (match,) = matches(log, Source.KERNEL)
    assert (match.number, match.rule) == (3, "gpu_fallen_off_bus")


def export(*fields: tuple[str, bytes], binary: bool = False) -> bytes:
    made = [b"__CURSOR=s=1;i=2\n", b"__REALTIME_TIMESTAMP=1795860060123456\n"]
    for name, value in fields:
        if binary and name == "MESSAGE":
            made += [name.encode(), b"\n", len(value).to_bytes(8, "little"), value, b"\n"]
        else:
            made.append(name.encode() + b"=" + value + b"\n")
    return b"".join(made) + b"\n"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
def test_normal__the_journals_export_is_read(binary: bool, cut: int) -> None:
    own = export(("MESSAGE", XID.encode()), ("_TRANSPORT", b"kernel"), binary=binary)
    forged = export(
        ("MESSAGE", XID.encode()), ("_TRANSPORT", b"syslog"), ("SYSLOG_IDENTIFIER", b"kernel"),
        binary=binary,
    )  # fmt: skip
    reader = LogReader(rules.shipped(), catalog(), source=Source.KERNEL)
    data = own + forged
    found = [match for at in range(0, len(data), cut) for match in reader.feed(data[at : at + cut])]
    found += reader.finish()
    assert [(match.rule, match.line) for match in found] == [("xid_48", XID)]


@pytest.mark.parametrize("name", ["dmesg --json, a member on each line", "journalctl -o verbose"])
@pytest.mark.parametrize("cut", [1, 7, 64])
def test_normal__a_record_of_several_lines_keeps_the_number_of_its_last(
    name: str, cut: int
) -> None:
    data = (KERNEL_LOGS[name] + "\n").encode()
    reader = LogReader(rules.shipped(), catalog(), source=Source.KERNEL)
    found = [match for at in range(0, len(data), cut) for match in reader.feed(data[at : at + cut])]
    found += reader.finish()
    (match,) = found
    assert match.rule == "xid_48"
    assert match.number <= data.count(b"\n") + 1
    assert normal(data).count(b"\n") in (data.count(b"\n"), data.count(b"\n") + 1)


def test_reader__the_time_of_a_program_is_no_time_since_boot() -> None:
    line = "[1700000000.123456] [gpu-7:4711 :0] sock.c:325  UCX  ERROR   connect(fd=31) failed: Connection refused"
    (match,) = matches(line, Source.CONTAINER)
    assert match.rule == "ucx_error"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_normal__other_encodings_are_read(encoding: str) -> None:
    assert container(crash("").encode(encoding)) == [("python_error", "train.py:17")]
