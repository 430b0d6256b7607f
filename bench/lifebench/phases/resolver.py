"""Outside the job: a name server that answers nothing for 9 s after the first question, as one that restarts."""

import os
import socket
import struct
import time

ADDRESS, POINTER = 1, b"\xc0\x0c"
SILENT_S = 9.0


def answer(query: bytes) -> bytes:
    """An address for a question of that type, no record for others."""
    (kind,) = struct.unpack_from("!H", query, query.index(0, 12) + 1)
    records = int(kind == ADDRESS)
    header = query[:2] + struct.pack("!5H", 0x8180, 1, records, 0, 0)
    end = query.index(0, 12) + 5
    record = POINTER + struct.pack("!HHIH", ADDRESS, 1, 60, 4) + socket.inet_aton("192.0.2.7")
    return header + query[12:end] + record * records


with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind((os.environ["LIFE_ADDRESS"], 53))
    first_s: float | None = None
    while True:
        data, sender = server.recvfrom(512)
        first_s = first_s or time.monotonic()
        if time.monotonic() > first_s + SILENT_S:
            server.sendto(answer(data), sender)
