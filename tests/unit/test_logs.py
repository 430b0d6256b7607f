"""Classifying lines of kernel and container logs: rules, prefixes, forged lines, operators' files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kcover_ebpf.cli.logs import logs
from kcover_ebpf.errors import PolicyError
from kcover_ebpf.hardware.catalog.files import shipped as catalog
from kcover_ebpf.logs import lines, rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader, Match

CRI = "2026-11-22T10:00:00.123456789Z stderr F "


def classify(text: str, *, bare_lines: Source = Source.UNKNOWN) -> list[Match]:
    reader = LogReader(rules.shipped(), catalog(), bare_lines=bare_lines)
    return [*reader.feed(text.encode()), *reader.finish()]


def names(text: str, *, bare_lines: Source = Source.UNKNOWN) -> list[str]:
    return [match.rule for match in classify(text, bare_lines=bare_lines)]


# Lines as kernels and drivers print them. Those of a family that gpud or node-problem-detector have rules
# for are recognised, and not recognised, as by their own tests.
KERNEL_LINES = {
    "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]": "soft_lockup",
    "[Sun Jan  5 18:37:06 2025] watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:2255424]": (
        "soft_lockup"
    ),
    "INFO: task jfsmount:136986 blocked for more than 120 seconds.": "hung_task",
    "task docker:4711 blocked for more than 120 seconds.": "hung_task",
    "rcu: INFO: rcu_sched self-detected stall on CPU": "rcu_stall",
    "nfs: server 10.0.0.5 not responding, timed out": "nfs_server_not_responding",
    "nfs: server nfs-prod-01.example.com not responding, still trying": "nfs_server_not_responding",
    "nfs: server 10.0.0.5 OK": "nfs_server_ok",
    "nfs4_reclaim_open_state: Lock reclaim failed!": "nfs_lock_reclaim_failed",
    " nfs_lock_and_join_requests+0x61/0x2b0 [nfs]": "nfs_writeback_hang",
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": (
        "nvme_timeout"
    ),
    "nvme nvme4: Disabling device after reset failure: -19": "nvme_disabled",
    "block nvme0n1: no available path - failing I/O": "nvme_no_path",
    "EXT4-fs (md0): Remounting filesystem read-only": "filesystem_readonly",
    "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory": (
        "ext4_error"
    ),
    "EXT4-fs (dm-0): I/O error while writing superblock": "superblock_write_error",
    "XFS (nvme0n1p1): Metadata corruption. Shutting down filesystem": "filesystem_shutdown",
    "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.": "raid_failed",
    "device-mapper: multipath: 253:2: Failing path 8:32.": "multipath_failed",
    "kworker/u203:1: attempt to access beyond end of device": "beyond_end_of_device",
    "Buffer I/O error on dev dm-0, logical block 0, lost sync page write": "buffer_io_error",
    "blk_update_request: I/O error, dev sdb, sector 2048 op 0x0:(READ)": "block_io_error",
    "Killed process 13536 (memorymonster) total-vm:33558652kB, anon-rss:920kB, file-rss:452kB": (
        "oom_kill"
    ),
    "Task in /mem2 killed as a result of limit of /mem3": "oom_kill",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing": (
        "peermem_invalid_context"
    ),
    (
        "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 "
        "error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]"
    ): "libnccl_segfault",
    "NVRM: GPU at PCI:0000:5d:00: GPU-xxx: a GPU crash dump has been created.": "gpu_crash_dump",
    "NVRM: _kgspRpcRecvPoll: GSP RPC timeout after 45 seconds": "gsp_failure",
    "NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x62:0x65:1860)": "gpu_init_failed",
    "NVRM: The NVIDIA probe routine failed for 1 device(s).": "gpu_init_failed",
    "NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.": "gpu_fallen_off_bus",
    "NVRM: Xid (PCI:0000:5d:00): 79, pid=1234, GPU has fallen off the bus.": "xid_79",
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).": (
        "mlx5_insufficient_power"
    ),
    "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature": (
        "mlx5_module_temperature"
    ),
    "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): ACCESS_REG(0x805) op_mod(0x1) failed": (
        "mlx5_access_reg_failed"
    ),
    "CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)": "thermal",
    "Kernel panic - not syncing: hung_task: blocked tasks": "kernel_panic",
    "BUG: unable to handle kernel NULL pointer dereference at 0000000000000008": "kernel_oops",
    "unregister_netdevice: waiting for eth0 to become free. Usage count = 1": (
        "unregister_netdevice"
    ),
    "VFS: file-max limit 1000000 reached": "file_max_reached",
    "{1}[Hardware Error]: event severity: corrected": "hardware_error_corrected",
    "{1}[Hardware Error]: event severity: fatal": "machine_check",
    "[ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0": "nvswitch_fatal",
    "[ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0": "nvswitch_nonfatal",
}

CONTAINER_LINES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "cuda_out_of_memory",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "cuda_ecc",
    "RuntimeError: CUDA error: an illegal memory access was encountered": "cuda_program_error",
    "RuntimeError: CUDA error: no CUDA-capable device is detected": "cuda_device_lost",
    "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": "cudnn_error",
    (
        "[rank3]:[E1122 10:00:00.123 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=8841, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran"
    ): "nccl_timeout",
    "node1:77:301 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<41000> with status=12 opcode=0": (
        "nccl_ib_error"
    ),
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting": (
        "nccl_remote_gone"
    ),
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.": "torch_worker_killed",
    "  exitcode: 1 failed (exitcode: 1) local_rank: 3 (pid: 77) of binary: /usr/bin/python3": (
        "torch_elastic_failed"
    ),
    "OSError: [Errno 28] No space left on device": "storage_full",
    "OSError: [Errno 116] Stale file handle: '/data/ckpt'": "storage_error",
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD": "mpi_lost_process",
    "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: connection lost": "jax_peer_lost",
    "jax.errors.JaxRuntimeError: FAILED_PRECONDITION: no such op": "jax_error",
    "XlaRuntimeError: INTERNAL: CUDA_ERROR_LAUNCH_FAILED: unspecified": "cuda_program_error",
    "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no device": "jax_device_failed",
    "node1:77:301 [0] NCCL WARN Bootstrap : no socket interface found": "nccl_init_failed",
    "node1:77:77 [0] NCCL WARN Mismatched NCCL version detected : 22005 against 22304": "nccl_version_mismatch",
    "RuntimeError: CUDA driver version is insufficient for CUDA runtime version": "cuda_driver_mismatch",
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.": (
        "torch_rendezvous_failed"
    ),
    "There are not enough slots available in the system to satisfy the 16": "mpi_start_failed",
    "[worker-1][[4711,1],3][btl_tcp_endpoint.c:730] connect() to 10.0.0.2 failed: No route to host": "mpi_fabric_error",
    "RuntimeError: Error building extension 'fused_adam'": "deepspeed_build_failed",
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore.": "deepspeed_scale_minimum",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536": "deepspeed_overflow",
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.": "anomaly_detected",
    "tensorflow.python.framework.errors_impl.UnavailableError: Connection reset by peer": "tensorflow_peer_lost",
    "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443)": "download_failed",
    "ConnectionResetError: [Errno 104] Connection reset by peer": "lost_connection",
    "PermissionError: [Errno 13] Permission denied: '/data'": "permission_denied",
    "OSError: [Errno 30] Read-only file system: '/ckpt'": "permission_denied",
    "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/last'": "file_not_found",
    "RuntimeError: CUDA error: out of memory": "cuda_out_of_memory",
    "cudaErrorNvlinkUncorrectable: uncorrectable NVLink error detected during the execution": "cuda_nvlink",
    "RuntimeError: DistStoreError: Timed out after 901 seconds waiting for clients.": "store_timeout",
    "torch.distributed.DistBackendError: ncclSystemError: System call failed": "nccl_system_error",
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running": "nccl_mismatch",
    "RuntimeError: unable to open shared memory object </torch_77> in read-write mode": "shm_exhausted",
    "RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:4": "gloo_peer_lost",
    "socket.gaierror: [Errno -3] Temporary failure in name resolution": "name_resolution",
    "RuntimeError: PytorchStreamReader failed reading zip archive": "checkpoint_broken",
    "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint": "object_store_error",
    "step 1200 | loss: nan | lr 1e-4": "loss_not_finite",
    "{'loss': nan, 'grad_norm': inf}": "loss_not_finite",
    "Fatal Python error: Segmentation fault": "fatal_signal",
    "ModuleNotFoundError: No module named 'apex'": "import_error",
    "ValueError: expected 4 channels": "python_error",
    "terminate called after throwing an instance of 'std::bad_alloc'": "host_out_of_memory",
}

UNKNOWN_LINES = [
    "INFO: task running normally",
    "NFS: Registering the id_resolver key type",
    "nfs: server 7.247.192.16 starting",
    " prefix_nfs_lock_and_join_requests+0x61/0x2b0 [nfs]",
    "EXT4-fs (dm-0): I/O error while reading superblock",
    "VFS: file-max limit reached",
    "Port module event: Temperature normal",
    "nvidia-peermem nv_get_p2p_free_callback:127 some other error",
    "[Feb 27 2025 14:10:02] [INFO] [tid 1808] multicast group 1 is allocated.",
    "step 1200 | loss: 0.31 | info: nanoseconds 12",
    "loss: 12.0 information",
    "saved checkpoint to /ckpt/step-1200",
    "",
]


@pytest.mark.parametrize(("text", "rule"), KERNEL_LINES.items(), ids=lambda text: text[:40])
def test_logs__kernel_line_is_classified(text: str, rule: str) -> None:
    assert names(f"[  123.456789] {text}\n") == [rule]


@pytest.mark.parametrize(("text", "rule"), CONTAINER_LINES.items(), ids=lambda text: text[:40])
def test_logs__container_line_is_classified(text: str, rule: str) -> None:
    assert names(f"{CRI}{text}\n") == [rule]


@pytest.mark.parametrize("text", UNKNOWN_LINES)
def test_logs__line_that_no_rule_knows_is_passed_over(text: str) -> None:
    assert names(f"{text}\n{CRI}{text}\n") == []


def test_logs__every_rule_has_an_example() -> None:
    shown = {*KERNEL_LINES.values(), *CONTAINER_LINES.values()}
    missing = {rule.name for rule in rules.shipped()} - shown
    # rules of lines that nobody has published whole, or that a sibling's example stands for
    assert len(missing) < 0.45 * len(rules.shipped()), sorted(missing)
    assert len({rule.name for rule in rules.shipped()}) == len(rules.shipped())


LOCKUP = "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]"


@pytest.mark.parametrize(
    "forged",
    [
        f"{CRI}{LOCKUP}",
        f"user  :notice: [Sun Jan  5 18:28:55 2025] {LOCKUP}",
        f"12,4711,99,-;{LOCKUP}",
    ],
    ids=["in a container's log", "by user space, dmesg -x", "by user space, /dev/kmsg"],
)
def test_logs__kernel_line_that_user_space_wrote_is_refused(forged: str) -> None:
    assert names(forged) == []


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[  123.456789] ",
        "[  123.456789][  T77] ",
        "[Sun Jan  5 18:28:55 2025] ",
        "kern  :warn  : [Sun Jan  5 18:28:55 2025] ",
        "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ",
        "Jan  5 18:28:55 node-7 kernel: ",
        "Jan  5 18:28:55 node-7 kernel: [  123.456789] ",
        "4,4711,99,-;",
    ],
)
def test_logs__prefix_of_a_kernel_log_is_taken_off(prefix: str) -> None:
    (match,) = classify(prefix + LOCKUP, bare_lines=Source.KERNEL)
    assert (match.line, match.rule) == (LOCKUP, "soft_lockup")


def test_logs__bare_line_belongs_to_the_log_that_the_caller_names() -> None:
    assert names(LOCKUP, bare_lines=Source.CONTAINER) == []
    assert names("ValueError: x", bare_lines=Source.KERNEL) == []


def test_match__says_the_number_of_its_line() -> None:
    text = "a\nb\n" + LOCKUP + "\nc\n" + LOCKUP
    assert [match.number for match in classify(text)] == [3, 5]


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
@example(cuts=[3, 3, 90])
def test_reader__does_not_mind_where_blocks_are_cut(cuts: list[int]) -> None:
    text = f"x\n{LOCKUP}\r\n{CRI}ValueError: y\n\n{CRI}MemoryError\n".encode()
    reader = LogReader(rules.shipped(), catalog())
    found: list[Match] = []
    start = 0
    for cut in [*sorted(cuts), len(text)]:
        found += reader.feed(text[start:cut])
        start = max(start, min(cut, len(text)))
    found += reader.finish()
    assert [(match.number, match.rule) for match in found] == [
        (2, "soft_lockup"),
        (3, "python_error"),
        (5, "host_out_of_memory"),
    ]


def test_logs__line_without_an_end_takes_bounded_memory() -> None:
    reader = LogReader(rules.shipped(), catalog())
    for _ in range(64):
        assert list(reader.feed(b"x" * (1 << 16))) == []
    assert len(reader._rest) <= 1 << 16
    assert [match.number for match in reader.feed(f"\n{LOCKUP}\n".encode())] == [2]


@given(st.binary(max_size=400))
def test_reader__takes_any_bytes(data: bytes) -> None:
    reader = LogReader(rules.shipped(), catalog())
    found = [*reader.feed(data), *reader.finish()]
    assert all(isinstance(match, Match) for match in found)


@given(st.text(max_size=200))
def test_parse__takes_any_text(text: str) -> None:
    line = lines.parse(text)
    assert line is None or text.endswith(line.text)


def test_logs__own_rules_come_first(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[[rule]]\nname = "ours"\npattern = "soft lockup"\ndomain = "hardware"\nseverity = "fatal"\n'
        'concerns = "node"\nadvice = "call us"\n'
    )
    reader = LogReader(rules.load(path), catalog())
    (match,) = reader.feed(f"{LOCKUP}\n".encode())
    assert (match.rule, match.advice, match.severity) == ("ours", "call us", "fatal")


def test_logs__rules_of_node_problem_detector_are_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel-monitor.json"
    monitor = {
        "plugin": "kmsg",
        "rules": [
            {"type": "temporary", "reason": "Odd", "pattern": r"odd thing \d+"},
            {
                "type": "permanent",
                "condition": "Broken",
                "reason": "Very",
                "pattern": "very broken",
            },
        ],
    }
    path.write_text(json.dumps(monitor))
    reader = LogReader(rules.load(path), catalog(), bare_lines=Source.KERNEL)
    found = [*reader.feed(b"odd thing 7\nit is very broken\n")]
    assert [(match.rule, match.lasting) for match in found] == [("Odd", False), ("Very", True)]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "rule = 1", "no list of rules"),
        ("a.toml", "[[rule]]\nname = 'x'", "rule 1: needs pattern"),
        ("a.toml", "x = ", "cannot be parsed"),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='(?=a)'\ndomain='network'\nseverity='info'",
            "rule 1: pattern",
        ),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='a'\ndomain='net'\nseverity='info'",
            "domain 'net' is not one of hardware, ",
        ),
        (
            "a.toml",
            "[[rule]]\nname='x'\npattern='a'\ndomain='network'\nseverity='info'\nhue=1",
            "unknown key 'hue'",
        ),
        ("a.json", "[1]", "no list of rules"),
        ("a.json", '{"rules": [{"type": "temporary"}]}', "rule 1: needs reason"),
        ("a.json", "{", "cannot be parsed"),
        ("a.json", '{"plugin": "custom", "rules": [{"path": "x"}]}', "custom plugin monitor"),
    ],
)
def test_logs__bad_rules_are_refused_in_one_line(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(PolicyError) as caught:
        rules.load(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_logs__rules_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read log rules"):
        rules.load(tmp_path / "none.toml")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_logs__rules_of_any_text_are_read_or_refused(tmp_path: Path, text: str) -> None:
    for path in (tmp_path / "any.toml", tmp_path / "any.json"):
        path.write_text(text)
        try:
            assert rules.load(path)[-1] == rules.shipped()[-1]
        except PolicyError:
            continue


def test_logs__command_prints_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"x\n{LOCKUP}\n{CRI}ValueError: \x1b[31mred\n")
    done = CliRunner().invoke(logs, [str(path), "-o", "json"])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert [(each["number"], each["rule"], each["domain"]) for each in found] == [
        (2, "soft_lockup", "driver"),
        (3, "python_error", "program"),
    ]
    assert {"line", "severity", "advice"} <= set(found[0])
    assert "\x1b" not in done.stdout


def test_logs__command_reads_standard_input_and_prints_text() -> None:
    done = CliRunner().invoke(logs, ["-"], input=f"{CRI}ValueError: \x1b[31mred\n")
    assert done.exit_code == 0
    assert done.stdout.startswith("1: error program python_error (job)\n")
    assert "\x1b" not in done.stdout
