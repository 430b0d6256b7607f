"""Details of many threads at once: of a real child, and of threads that cannot be read."""

import subprocess

from kcover_ebpf.host.blocked_call import Call
from kcover_ebpf.host.procfs import boottime_ns
from kcover_ebpf.host.trace_inspector import TraceInspector, TraceRequest
from kcover_ebpf.ids import Pid, Tid


def request(pid: int) -> TraceRequest:
    """The first thread of a process, in a read of its standard input."""
    return TraceRequest(Pid(pid), Tid(pid), Call("read", (0, 0, 1, 0, 0, 0), 0), boottime_ns())


def test_inspect__the_file_that_a_child_reads_at_each_pass() -> None:
    inspector = TraceInspector()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        found = [inspector.inspect([request(child.pid)], 20.0) for _ in range(2)]
        child.kill()
    assert len(found) == 2
    for each in found:
        assert each.keys() == {(child.pid, child.pid)}
        (seen,) = each.values()
        assert [(file.fd, file.kind) for file in seen.wait.files] == [(0, "pipe")]


def test_inspect__what_is_not_read_in_time_is_missing_and_does_not_come_later() -> None:
    inspector = TraceInspector()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        first = inspector.inspect([request(child.pid)], 0.0)
        gone = inspector.inspect([request(2**22 - 1)], 20.0)
        child.kill()
    assert first.keys() <= {(child.pid, child.pid)}
    assert (child.pid, child.pid) not in gone
