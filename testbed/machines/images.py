"""Kernel images as distributions compress them."""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib


def unpacked(image: bytes) -> bytes:
    """The kernel in a vmlinuz of either architecture, where need be decompressed.

    Layouts: Documentation/arch/x86/boot.rst; drivers/firmware/efi/libstub/zboot-header.S.
    """
    if image[4:8] == b"zimg":
        offset, size = struct.unpack_from("<II", image, 8)
        return _decompressed(image[offset : offset + size])
    if image[0x202:0x206] == b"HdrS":
        begin = (image[0x1F1] + 1) * 512
        offset, size = struct.unpack_from("<II", image, 0x248)
        return _decompressed(image[begin + offset :][:size])
    return _decompressed(image)


def _decompressed(data: bytes) -> bytes:
    if data.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)
    if data.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(31).decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        # four bytes with the size trail the frame: zstd complains about them and is right otherwise
        return subprocess.run(("zstd", "-dcq"), input=data, capture_output=True, check=False).stdout
    return data
