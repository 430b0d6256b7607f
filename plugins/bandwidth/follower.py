"""Every pod but the first: starts commands for the first pod until that reports the result of the check."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
import time

from .link import GATHER_S, LINK_S, PORT, MeasuredLink, kill
from .place import NODE, BandwidthOutcome, PodPlace, Unknown, gpus

_CONNECT_S = 5.0
_AGAIN_S = 0.5
"""Seconds between attempts while the name of the first pod does not resolve or it does not listen."""


class Follower:
    """One bandwidth check, as every pod but the first runs it."""

    def __init__(self, place: PodPlace) -> None:
        self._place = place
        self._children: list[subprocess.Popen[bytes]] = []

    def run(self) -> BandwidthOutcome:
        """Run until the first pod reports the result; raises `Unknown` if there is none."""
        link = self._connected()
        try:
            link.send(
                {"index": self._place.index, "slots": gpus(), "node": os.environ.get(NODE, "")}
            )
            for message in link.messages():
                if "result" in message:
                    slow = tuple(int(item) for item in message.get("slow", ()))
                    return BandwidthOutcome(str(message["result"]), slow)
                self._obey(link, message)
        finally:
            self._kill()
            link.close()
        raise Unknown("the first pod of the job is gone")

    def _connected(self) -> MeasuredLink:
        deadline_s = time.monotonic() + GATHER_S
        while True:
            try:
                found = socket.create_connection((self._place.first, PORT), timeout=_CONNECT_S)
            except OSError as error:
                if time.monotonic() > deadline_s:
                    raise Unknown(f"no connection to {self._place.first}: {error}") from error
                time.sleep(_AGAIN_S)
            else:
                found.settimeout(LINK_S)
                return MeasuredLink(found)

    def _obey(self, link: MeasuredLink, message: dict[str, object]) -> None:
        if "kill" in message:
            self._kill()
        elif "start" in message:
            arguments = (link, message["start"], str(message.get("command")))
            threading.Thread(target=self._start, args=arguments, daemon=True).start()

    def _start(self, link: MeasuredLink, number: object, command: str) -> None:
        words = ["/bin/sh", "-c", command]
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        self._children.append(child)
        code = child.wait()
        with contextlib.suppress(OSError):
            link.send({"ended": number, "code": code})

    def _kill(self) -> None:
        for child in self._children:
            kill(child)
