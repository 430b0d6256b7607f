"""One virtual machine, emulated (no KVM), as a child process that cannot outlive the tests."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from testbed.machines.packages import ROOT
from tests.vm.kernels import Prepared

_PR_SET_PDEATHSIG = 1
_BOOT_S = 900.0
"""Two seconds on an idle machine."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """How an architecture is emulated."""

    words: tuple[str, ...]
    boot: str
    """Words of its kernel's command line."""


_MACHINES = {
    "amd64": _Machine(
        ("qemu-system-x86_64", "-machine", "q35", "-cpu", "max"), "console=ttyS0 no_timer_check"
    ),
    # pointer authentication by the fast algorithm: the one of the architecture takes most of the time
    "arm64": _Machine(
        ("qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"),
        "console=ttyAMA0 pcie_ports=native",
    ),
}


class GuestError(Exception):
    """The guest did not do what it was asked; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended in the guest."""

    code: int
    output: str


def _child_setup() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.nice(5)  # the host's own tests measure time


class Guest:
    """Boots at construction; use as a context manager."""

    def __init__(
        self,
        kernel: Prepared,
        *,
        devices: Sequence[str] = (),
        memory_mib: int = 1024,
        steady: bool = False,
    ) -> None:
        """`steady`: guest time is one nanosecond an instruction, whatever else the host does.

        It takes about three times as long.
        """
        self._steady = steady
        self._folder = Path(tempfile.mkdtemp(prefix="guest."))
        self.share = self._folder / "share"
        """A folder that the guest sees, writable, as /share."""
        self.share.mkdir()
        self._console = self._folder / "console"
        self._words = self._command(kernel, devices, memory_mib)
        self._boot()

    def _boot(self) -> None:
        with self._console.open("wb") as console:
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                preexec_fn=_child_setup,  # noqa: PLW1509 - no other thread runs yet
            )
        try:
            self._agent = self._connect("agent")
            self._lines = self._agent.makefile("rb")
            self._agent.settimeout(_BOOT_S)
            if b"ready" not in self._lines.readline():
                raise GuestError(self.console())
        except ConnectionError as error:
            said = self.console()
            self.close()
            raise GuestError(f"the machine ended: {said}") from error
        except BaseException:
            self.close()
            raise

    def _command(self, kernel: Prepared, devices: Sequence[str], memory_mib: int) -> list[str]:
        # Of an emulator that gets little CPU the kernel measures timers wrongly: it gives one up, and its
        # time stamp counter makes time run tenfold. With instructions counted, the counter is exact.
        machine = _MACHINES[kernel.kernel.arch]
        arguments = f"{machine.boot} quiet panic=-1"
        if kernel.kernel.arch == "amd64":
            arguments += " tsc=reliable" if self._steady else " tsc=unstable clocksource=hpet"
        folders = [
            ("host", kernel.root, True),
            ("modules", kernel.modules, True),
            ("share", self.share, False),
        ]
        if kernel.root != Path("/"):
            folders.append(("checkout", ROOT, True))
            arguments += f" checkout={ROOT}"
        shares: list[str] = []
        for tag, path, read_only in folders:
            access = ",readonly=on" if read_only else ""
            shares += [
                "-fsdev",
                f"local,id={tag},path={path},security_model=none,multidevs=remap{access}",
                "-device",
                f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
            ]
        return [
            *(*machine.words, "-accel", "tcg", "-smp", "1"),
            *(("-icount", "shift=0,sleep=on") if self._steady else ()),
            *("-m", str(memory_mib), "-nodefaults", "-no-user-config", "-display", "none"),
            *("-no-reboot", "-serial", "stdio"),
            *("-kernel", str(kernel.vmlinux), "-initrd", str(kernel.initrd), "-append", arguments),
            *("-qmp", f"unix:{self._folder}/monitor,server=on,wait=off"),
            *("-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=agent,path={self._folder}/agent,server=on,wait=off"),
            *("-device", "virtserialport,chardev=agent,name=agent"),
            *shares,
            *devices,
        ]

    def _connect(self, name: str) -> socket.socket:
        deadline = time.monotonic() + 20
        while True:
            port = socket.socket(socket.AF_UNIX)
            try:
                port.connect(str(self._folder / name))
            except OSError:
                port.close()
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise GuestError(f"no virtual machine: {self.console()}") from None
                time.sleep(0.02)
            else:
                return port

    def console(self) -> str:
        """The end of what the guest printed."""
        return self._console.read_text(errors="replace")[-2000:]

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Done:
        """One request to the agent."""
        self._agent.settimeout(5 * timeout_s + 60)
        try:
            self._agent.sendall(json.dumps(request).encode() + b"\n")
            line = self._lines.readline()
        except TimeoutError as error:
            raise GuestError(f"no answer to {request}: {self.console()}") from error
        if not line:
            raise GuestError(f"the guest died: {self.console()}")
        reply = json.loads(line)
        return Done(reply["code"], reply["output"])

    def run(self, *command: str, timeout_s: float = 240) -> Done:
        """Run a command to its end; its output is stdout and stderr together."""
        return self.ask({"run": list(command), "timeout": timeout_s}, timeout_s)

    def shell(self, script: str, timeout_s: float = 240) -> str:
        """Run a shell script that must succeed; returns what it printed."""
        done = self.run("/bin/sh", "-ec", script, timeout_s=timeout_s)
        if done.code:
            raise GuestError(f"{script}: {done.code}: {done.output}")
        return done.output

    def start(self, *command: str, log: str) -> int:
        """Start a command that continues in the background, its output in the guest's file `log`."""
        return int(self.ask({"run": list(command), "background": log}, 10).output)

    def python(self, source: str, timeout_s: float = 240) -> str:
        """Run Python inside the agent, where names stay; returns what it printed."""
        done = self.ask({"python": source}, timeout_s)
        if done.code:
            raise GuestError(done.output)
        return done.output

    def monitor(self, line: str) -> str:
        """A command of QEMU's monitor."""
        with self._connect("monitor") as port, port.makefile("rwb") as stream:
            stream.readline()
            for name, arguments in (
                ("qmp_capabilities", {}),
                ("human-monitor-command", {"command-line": line}),
            ):
                stream.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
                stream.flush()
                reply: dict[str, Any] = {}
                while not reply.keys() & {"return", "error"}:
                    reply = json.loads(stream.readline())
            if "error" in reply:
                raise GuestError(str(reply["error"]))
            return str(reply["return"]).strip()

    def power_cycle(self) -> None:
        """Cut its power and boot it again: another boot id, no module loaded, the same devices and /share."""
        self._cut()
        self._boot()

    def close(self) -> None:
        """End the machine and remove its files."""
        self._cut()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _cut(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (getattr(self, "_lines", None), getattr(self, "_agent", None)):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PYTHON = str(ROOT / ".venv" / "bin" / "python")
"""The checkout's interpreter, at the same path inside the guest."""


def wire_end(ours: Path, theirs: Path) -> list[str]:
    """A network card on a wire to another machine: datagrams between two sockets of the host.

    Between card and wire is a hub, so that either can be cut: the monitor's "set_link wire off" loses
    everything in silence, "set_link card off" pulls the plug.
    """
    ends = f"local.type=unix,local.path={ours},remote.type=unix,remote.path={theirs}"
    return [
        *("-netdev", f"dgram,id=wire,{ends}"),
        *("-netdev", "hubport,id=far,hubid=0,netdev=wire"),
        *("-netdev", "hubport,id=near,hubid=0"),
        *("-device", "virtio-net-pci,netdev=near,id=card,mac=" + _mac(ours)),
    ]


def _mac(path: Path) -> str:
    return f"52:54:00:00:00:{sum(path.name.encode()) % 256:02x}"


CARD = "$(basename $(dirname $(grep -l 52:54 /sys/class/net/*/address)))"
"""In a guest's shell: the name of its network card."""


def idle_card() -> list[str]:
    """A network card whose plug can be pulled (the monitor's "set_link idle off"), with nothing else on the wire."""
    return [
        *("-netdev", "hubport,id=unplugged,hubid=7"),
        *("-device", "virtio-net-pci,netdev=unplugged,id=idle,bus=pcie.0"),
    ]


RDMA_UP = f"""
modprobe virtio_net; modprobe rdma_rxe; modprobe ib_uverbs; sleep 1; c={CARD}; ip link set $c up
rdma link add plug type rxe netdev $c; sleep 2; grep -q ACTIVE /sys/class/infiniband/plug/ports/1/state
basename $(dirname $(readlink -f /sys/class/net/$c/device))
"""
"""In a guest's shell: makes the network card an RDMA device, called plug; prints its PCI address."""


def gpu_slot(bus: int = 0x5D, name: str = "gpu", device: str = "virtio-rng-pci") -> list[str]:
    """A PCIe endpoint with AER at 0000:BUS:00.0, behind its own root port; what it is, is `device`."""
    return [
        *("-device", f"pxb-pcie,id={name}-root,bus_nr={bus - 1:#x},bus=pcie.0"),
        *(
            "-device",
            f"pcie-root-port,id={name}-port,bus={name}-root,slot=40,chassis={bus},addr=0.0",
        ),
        *("-device", f"{device},aer=on,id={name},bus={name}-port"),
    ]


def plugged_card() -> list[str]:
    """A network card behind its own root port, at 0000:6d:00.0."""
    wire = ("-netdev", "hubport,id=slot-wire,hubid=8")
    return [*wire, *gpu_slot(0x6D, "slot", "virtio-net-pci,netdev=slot-wire")]


def nvme_drive() -> list[str]:
    """An NVMe drive of zeros; the monitor's "block_set_io_throttle" of `flash` makes it slow."""
    return [
        *("-drive", "if=none,id=flash,format=raw,file.driver=null-co,file.size=64M"),
        *("-device", "nvme,drive=flash,serial=1,bus=pcie.0"),
    ]
