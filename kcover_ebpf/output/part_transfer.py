"""A bundle as lines of text, for a connection that carries lines: a header, base64, and an end line.

Equal files give equal lines, so an interrupted transfer continues where it ended.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.errors import UsageError
from kcover_ebpf.output import archives
from kcover_ebpf.tunables.kube import PART_MOST_BYTES

SCHEMA = "kcover.io/archive-transfer/v1"
_LINE_BYTES = 48 << 10
_END = "."


def lines_of(files: Mapping[str, bytes], offset: int) -> Iterator[str]:
    """Lines of the packed bundle, starting at `offset` bytes."""
    data = gzip.compress(archives.tar_of(files), compresslevel=6, mtime=0)
    digest = hashlib.sha256(data).hexdigest()
    header = {"schema": SCHEMA, "size_bytes": len(data), "sha256": digest, "from": offset}
    yield json.dumps(header)
    for begin in range(offset, len(data), _LINE_BYTES):
        yield base64.b64encode(data[begin : begin + _LINE_BYTES]).decode("ascii")
    yield _END


@dataclass(slots=True)
class Received:
    """The part of one bundle that has arrived so far."""

    data: bytearray = field(default_factory=bytearray)
    sha256: str = ""

    def take(self, lines: Iterable[str]) -> bool:
        """Add these lines, which start at the end of `data`; True once the bundle is complete.

        Raises `UsageError` for invalid lines, and for a bundle that is too large or has changed meanwhile.
        """
        found = iter(lines)
        size_bytes = self._begin(next(found, ""))
        for line in found:
            if line == _END:
                break
            try:
                self.data += base64.b64decode(line, validate=True)
            except ValueError as error:
                raise UsageError("the agent sent a line that is not base64") from error
            if len(self.data) > size_bytes:
                raise UsageError("the agent sent more than it had announced")
        else:
            return False
        if hashlib.sha256(self.data).hexdigest() != self.sha256:
            self.data.clear()
            raise UsageError("the checksum of what the agent sent is wrong")
        return True

    def _begin(self, line: str) -> int:
        try:
            header = json.loads(line)
            schema, size_bytes = header["schema"], int(header["size_bytes"])
            sha256, begin = str(header["sha256"]), int(header["from"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise UsageError("its agent is of a version that sends no bundles") from error
        if schema != SCHEMA or size_bytes > PART_MOST_BYTES:
            most = f"{PART_MOST_BYTES >> 20} MiB"
            raise UsageError(f"its bundle has another form, or is larger than {most}")
        if begin != len(self.data) or (self.sha256 and self.sha256 != sha256):
            self.data.clear()
            self.sha256 = ""
            raise UsageError("its bundle changed while it was fetched")
        self.sha256 = sha256
        return size_bytes
