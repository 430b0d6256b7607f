"""Agents of many nodes in one process: each has a watch of its own, and acknowledges with a report of its own.

They are as light as they can be made, so that two cores that also carry the API server measure the way of an
order through it rather than themselves. What an agent does to its processes takes no time here.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode, urlsplit

from kcover_ebpf.cluster.order import Order, Verb, incident_of
from kcover_ebpf.cluster.report import Ack, AckResult
from kcover_ebpf.kube.session import Session
from tools.clusterbench.plane import NAMESPACE, pod_status, report_body

_SENDERS = 24
"""Connections by which reports are sent; agents of a real cluster have one each."""
_AT_ONCE = 32
"""Watches that are being connected at a time."""
_INCIDENTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/incidents"
_REPORTS = f"/apis/kcover.io/v1alpha1/namespaces/{NAMESPACE}/faultreports"


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    kind: str
    body: dict[str, Any]


class Agents:
    """One agent for each pod of a gang."""

    def __init__(self, session: Session, job: str, gang: list[dict[str, Any]]) -> None:
        self._job, self._gang = job, gang
        settings = session.configuration
        self._url = urlsplit(settings.host)
        self._tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        self._tls.load_cert_chain(settings.cert_file, settings.key_file)
        version = session.list(_INCIDENTS, {"limit": "1"})["metadata"]["resourceVersion"]
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "900"}
        self._watch = f"{_INCIDENTS}?{urlencode(query)}"
        self._acks: list[tuple[Ack, ...]] = [() for _ in gang]
        self.heard_s: dict[Verb, list[float]] = {verb: [] for verb in Verb}
        """When each agent heard an order, which is when it obeys; unix seconds."""
        self.up = threading.Event()
        """Set once every agent has its watch."""
        self._up_count = 0

    def start(self) -> None:
        """Begin, in a thread of its own."""
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()

    async def _run(self) -> None:
        self._queue: asyncio.Queue[_Request] = asyncio.Queue()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        tasks = [self._listen(index) for index in range(len(self._gang))]
        await asyncio.gather(*tasks, *(self._send() for _ in range(_SENDERS)))

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        host, port = self._url.hostname, self._url.port
        reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _listen(self, index: int) -> None:
        async with self._gate:
            context = self._connected()
            reader, writer = await context.__aenter__()
            writer.write(f"GET {self._watch} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
            await _head(reader)
        self._up_count += 1
        if self._up_count == len(self._gang):
            self.up.set()
        async for line in _lines(reader):
            order = _order(line)
            if order is not None and all(each.order != order.id for each in self._acks[index]):
                self._obey(index, order)

    def _obey(self, index: int, order: Order) -> None:
        self.heard_s[order.verb].append(time.time())
        ack = Ack(order.id, order.verb, AckResult.DONE, 1)
        self._acks[index] = (*self._acks[index], ack)[-8:]
        pod = self._gang[index]
        body = report_body(self._job, f"n{index}", [pod], acks=self._acks[index])
        path = f"{_REPORTS}/{self._job}.n{index}?fieldManager=kcover-agent&force=true"
        self._queue.put_nowait(_Request("PATCH", path, "application/apply-patch+yaml", body))
        if order.verb is Verb.KILL:
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/status"
            body = pod_status(1)
            self._queue.put_nowait(_Request("PATCH", path, "application/merge-patch+json", body))

    async def _send(self) -> None:
        async with self._connected() as (reader, writer):
            while True:
                asked = await self._queue.get()
                body = json.dumps(asked.body).encode()
                head = f"{asked.method} {asked.path} HTTP/1.1\r\nHost: bench\r\n"
                head += f"Content-Type: {asked.kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                status, length = await _head(reader)
                if length is not None:
                    answer = await reader.readexactly(length)
                else:
                    answer = b"".join([chunk async for chunk in _chunks(reader)])
                if status >= 300:
                    raise RuntimeError(f"{asked.path}: {status} {answer[:300]!r}")


async def _head(reader: asyncio.StreamReader) -> tuple[int, int | None]:
    """Status and content length of an answer; None for a chunked one."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    named = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    length = named.get("content-length")
    return int(lines[0].split()[1]), None if length is None else int(length)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline() or b"0", 16):
        yield (await reader.readexactly(size + 2))[:-2]
    await reader.readline()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a chunked answer, until it ends."""
    rest = b""
    async for chunk in _chunks(reader):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


@lru_cache(maxsize=64)
def _order(line: bytes) -> Order | None:
    # all watches tell the same; the agents of a real cluster read it each on a machine of its own
    if b'"order"' not in line:
        return None
    return incident_of(json.loads(line)["object"]).order
