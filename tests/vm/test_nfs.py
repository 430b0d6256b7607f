"""An NFS server that stops answering: the kernel's own server in a network namespace of the guest, cut off silently."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.machines.packages import ROOT
from tests.vm.guest import Guest
from tests.vm.sensing import Figure, Line, Lines, Run, inspected, known_lines, logged_as, trains

pytestmark = pytest.mark.family("nfs")

SERVER, CLIENT = "10.99.0.1", "10.99.0.2"
EXPORT, MOUNT = "/srv/export", "/mnt/filer"
IN_SERVER = "nsenter --net=/run/netns/filer sh -e /run/filer.sh"
PATIENCE_S = 20

# The export table that a daemon (mountd) would fill on request is written into the kernel beforehand, for ten hours.
# Flags: include/uapi/linux/nfsd/export.h; 0x2404 is file system 0 (the root of NFSv4), any port, no subtree check.
SERVE = f"""
ip link set lo up; ip address add {SERVER}/24 dev far1; ip link set far1 up
mount -t tmpfs none {EXPORT}
mount -t nfsd nfsd /proc/fs/nfsd
cd /proc/fs/nfsd
echo "-2 -3 +4 +4.1 +4.2" >versions
echo 10 >nfsv4leasetime; echo 10 >nfsv4gracetime
until=$(($(date +%s) + 36000))
echo "nfsd {CLIENT} $until trainers" >/proc/net/rpc/auth.unix.ip/channel
echo "trainers {EXPORT} $until $((0x2404)) 65534 65534 0" >/proc/net/rpc/nfsd.export/channel
echo "trainers 1 \\\\x00000000 $until {EXPORT}" >/proc/net/rpc/nfsd.fh/channel
echo "tcp 2049" >portlist
echo 2 >threads
"""
# a client that gives up waiting after seconds: it prints what it would print after three minutes
OPTIONS = f"vers=4.2,addr={SERVER},clientaddr={CLIENT},timeo=20,retrans=1"
CUT = "nft add table inet cut; nft add chain inet cut gate '{ type filter hook input priority 0; policy drop; }'"
HEAL = "nft delete table inet cut"


@pytest.fixture(scope="module")
def filer(guest: Guest) -> Iterator[Guest]:
    """The guest, with a file system of its own server mounted."""
    for module in ("veth", "nfsd", "nfsv4", "nf_tables"):
        if guest.run("/sbin/modprobe", module).code:
            pytest.skip(f"needs {module}: this kernel is without it")
    guest.shell(
        f"mkdir -p /run/netns {EXPORT} {MOUNT}; ip netns add filer; "
        "ip link add near1 type veth peer name far1 netns filer; "
        f"ip address add {CLIENT}/24 dev near1; ip link set near1 up"
    )
    in_server(guest, SERVE)
    guest.shell(f"mount -i -t nfs4 -o {OPTIONS} {SERVER}:/ {MOUNT}")
    guest.shell(f"echo first >{MOUNT}/first; cat {EXPORT}/first", timeout_s=120)
    yield guest
    guest.shell(f"umount {MOUNT}; ip netns del filer")


def in_server(guest: Guest, script: str) -> None:
    """Run it in the server's network, but among the guest's mounts: the server ends with its last mount."""
    guest.python(f"open('/run/filer.sh', 'w').write({script!r})")
    guest.shell(IN_SERVER)


@pytest.fixture
def silent(filer: Guest) -> Iterator[Guest]:
    """The server receives nothing any more, and its connections stay open; afterwards it answers again."""
    filer.shell("dmesg -C")
    in_server(filer, CUT)
    yield filer
    in_server(filer, HEAL)
    # what waited has its answer: else the next test's mount is still busy
    filer.shell(f"stat -f {MOUNT}", timeout_s=300)


def test_a_server_that_answers_passes(filer: Guest) -> None:
    found = inspected(filer, "storage")
    (text,) = [item for item in found["evidence"] if item.startswith(MOUNT)]
    assert text.startswith(f"{MOUNT} (nfs4, {SERVER}:/): answered in ")


def test_a_silent_server_fails_the_inspection_and_is_a_matter_of_its_jobs(silent: Guest) -> None:
    found = inspected(silent, "storage")
    assert found["result"] == "fail"
    assert f"{MOUNT} (nfs4, {SERVER}:/): no answer within 5 s" in found["evidence"]
    assert "check its server" in found["advice"]
    line = logged_as(silent, "nfs_server_not_responding")
    assert SERVER in line["line"]
    assert (line["domain"], line["concerns"], line["lasting"]) == ("storage", "job", False)


def test_a_server_that_answers_again_is_reported(filer: Guest) -> None:
    filer.shell("dmesg -C")
    in_server(filer, CUT)
    filer.start("/bin/sh", "-c", f"echo x >{MOUNT}/second", log="/dev/null")
    logged_as(filer, "nfs_server_not_responding")
    in_server(filer, HEAL)
    assert SERVER in logged_as(filer, "nfs_server_ok")["line"]
    assert {line["concerns"] for line in known_lines(filer)} == {"job"}
    found = inspected(filer, "storage")
    assert not [
        item for item in found["evidence"] if item.startswith(MOUNT) and "no answer" in item
    ]


def stuck(lines: Lines) -> Line | None:
    """The last verdict that names a storage call."""
    found = [line for line in lines if line.get("cause") == "storage"]
    return found[-1] if found else None


def test_a_job_that_writes_there_is_hung_in_storage(filer: Guest, record_property: Figure) -> None:
    """The proof is the server's: it answered none of the requests in flight for `storage_patience`."""
    (filer.share / "patient.toml").write_text(f'storage_patience = "{PATIENCE_S}s"\n')
    launch = (
        f"export JOB_GPU= JOB_LOG={MOUNT}/metrics WORLD_SIZE=2; for r in 0 1; do RANK=$r LOCAL_RANK=$r "
        f"/usr/bin/python3 {ROOT}/tests/vm/job.py & done; wait"
    )
    run = Run(filer, "--policy", "/share/patient.toml", launch=launch)
    run.wait(trains, "training")
    in_server(filer, CUT)
    cut_at_s = float(filer.python("import time; print(time.time())"))
    lines = run.wait(lambda lines: stuck(lines) is not None, "verdict")
    verdict = stuck(lines)
    in_server(filer, HEAL)
    assert verdict is not None
    record_property("to_verdict_s", round(verdict["time"] - cut_at_s, 1))
    assert (verdict["verdict"], verdict["culprit"]["rank"]) == ("HUNG", 0)
    assert any(MOUNT in item["text"] for item in verdict["evidence"])
    mark = len(run.lines())
    run.wait(trains, "training after the server's return", mark)
    run.end_job()
