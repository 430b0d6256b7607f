"""Writes the small initramfs of a guest: busybox, a few modules, the agent, an init. Needs no root.

The init mounts the host's own root read-only over 9p with a tmpfs on top: the guest sees the
checkout and every installed package at their own paths, and nothing it writes reaches the host. A guest
of another architecture gets its own root (the mount called host), with the checkout mounted into it
and an interpreter of that architecture in the place of the environment's.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

_INIT = r"""#!/bin/busybox sh
b=/bin/busybox
for d in proc sys dev lower upper root; do $b mkdir -p /$d; done
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
for m in $($b cat /modules/order); do $b insmod /modules/$m || echo "insmod $m failed"; done
share="trans=virtio,version=9p2000.L,msize=512000"
$b mount -t 9p -o $share,cache=loose,ro host /lower || $b poweroff -f
$b mount -t tmpfs none /upper
$b mkdir /upper/data /upper/work
layers=lowerdir=/lower,upperdir=/upper/data,workdir=/upper/work
$b mount -t overlay -o $layers none /root || $b poweroff -f
$b mkdir -p /root/lib/modules /root/share
for d in proc sys dev; do $b mount --move /$d /root/$d; done
$b mount -t tmpfs none /root/run
$b mkdir -p /root/run/agent /root/dev/shm /root/dev/pts
$b cp /agent.py /root/run/agent/
$b mount -t tmpfs none /root/dev/shm
$b mount -t devpts none /root/dev/pts
$b mount -t 9p -o $share,cache=loose,ro modules /root/lib/modules
$b mount -t 9p -o $share,cache=none share /root/share
for fs in tracefs:tracing debugfs:debug; do
  $b mount -t ${fs%:*} none /root/sys/kernel/${fs#*:} 2>/dev/null
done
$b mount -t bpf none /root/sys/fs/bpf 2>/dev/null
$b mount -t cgroup2 none /root/sys/fs/cgroup 2>/dev/null
checkout=$($b sed -n 's/.* checkout=\([^ ]*\).*/\1/p' /root/proc/cmdline)
if [ -n "$checkout" ]; then
  $b mkdir -p /root$checkout
  $b mount -t 9p -o $share,cache=loose,ro checkout /root$checkout
  $b mount -t tmpfs none /root$checkout/.venv/bin
  packages=$(echo /root$checkout/.venv/lib/python3*/site-packages)
  path=$checkout:${packages#/root}
  bin=/root$checkout/.venv/bin
  printf '#!/bin/sh\nPYTHONPATH=%s PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 "$@"\n' "$path" >$bin/python
  main='import sys; from kcover_ebpf.cli import main; sys.exit(main())'
  printf '#!/bin/sh\nexec "${0%%/*}/python" -c "%s" "$@"\n' "$main" >$bin/kcover-ebpf
  $b chmod 755 $bin/python $bin/kcover-ebpf
fi
[ -e /root/dev/fd ] || $b ln -s /proc/self/fd /root/dev/fd
$b ip link set lo up
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
exec $b switch_root /root /usr/bin/python3 /run/agent/agent.py
"""


class Archive:
    """A cpio archive in the newc format (driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._count = 0
        self._folders: set[str] = set()

    def add(
        self, name: str, data: bytes, mode: int = 0o755, device: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a regular file, or a node when `mode` carries a type; folders appear as needed."""
        for parent in reversed(Path(name).parents[:-1]):
            if str(parent) not in self._folders:
                self._folders.add(str(parent))
                self._entry(str(parent), stat.S_IFDIR | 0o755, b"", (0, 0))
        kind = 0 if stat.S_IFMT(mode) else stat.S_IFREG
        self._entry(name, kind | mode, data, device)

    def finish(self) -> bytes:
        """The whole archive."""
        self._entry("TRAILER!!!", 0, b"", (0, 0))
        return self._bytes.getvalue()

    def _entry(self, name: str, mode: int, data: bytes, device: tuple[int, int]) -> None:
        self._count += 1
        path = name.encode() + b"\0"
        numbers = (self._count, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        self._padded(b"070701" + b"".join(b"%08X" % number for number in numbers) + path)
        self._padded(data)

    def _padded(self, data: bytes) -> None:
        self._bytes.write(data + bytes(-len(data) % 4))


def build(target: Path, modules: Path, wanted: Sequence[str], agent: Path, busybox: Path) -> None:
    """Write the archive unless it is newer than its parts."""
    parts = (busybox, agent, Path(__file__))
    if target.exists() and all(part.stat().st_mtime < target.stat().st_mtime for part in parts):
        return
    archive = Archive()
    archive.add("bin/busybox", busybox.read_bytes())
    archive.add("dev/console", b"", stat.S_IFCHR | 0o600, (5, 1))
    archive.add("init", _INIT.encode())
    archive.add("agent.py", agent.read_bytes())
    order = load_order(modules, wanted)
    for path in order:
        archive.add(f"modules/{_plain(path)}", _unpacked(path), 0o644)
    archive.add("modules/order", "\n".join(map(_plain, order)).encode(), 0o644)
    target.write_bytes(archive.finish())


def load_order(modules: Path, wanted: Sequence[str]) -> list[Path]:
    """Files of the wanted modules and what they need, in load order; built-in ones left out."""
    needs: dict[str, list[Path]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[_key(path)] = [*(modules / o for o in reversed(others.split())), modules / path]
    builtin = {_key(line) for line in (modules / "modules.builtin").read_text().splitlines()}
    found: dict[Path, None] = {}
    for name in wanted:
        if name not in builtin:
            found.update(dict.fromkeys(needs[name]))
    return list(found)


def _key(path: str) -> str:
    return re.sub(r"\.ko(\.\w+)?$", "", Path(path).name).replace("-", "_")


def _plain(path: Path) -> str:
    return f"{_key(str(path))}.ko"


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    match path.suffix:
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".zst":
            return subprocess.run(
                ("zstd", "-dcq"), input=data, capture_output=True, check=True, timeout=60
            ).stdout
    return data
