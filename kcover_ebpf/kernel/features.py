"""What this kernel offers, found by trying: a tiny program or map is loaded and the errno read.

Versions are never compared: distributions backport, and configurations differ.
"""

from __future__ import annotations

from pathlib import Path

from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.kernel import capabilities

BTF = Path("/sys/kernel/btf/vmlinux")


def require_rights() -> None:
    """Raise `CannotObserve`, with what to do, where loading BPF cannot succeed."""
    lacking = capabilities.missing()
    if lacking:
        raise CannotObserve(f"missing {' and '.join(lacking)}: run as root, or grant them")
    if not BTF.exists():
        raise CannotObserve(
            f"this kernel has no type information ({BTF}): "
            "it must be built with CONFIG_DEBUG_INFO_BTF=y, and /sys mounted"
        )
