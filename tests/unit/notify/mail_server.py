"""A mail server as far as RFC 5321 needs it to take a mail: it keeps what it got, and refuses as a test says."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class MailServer:
    port: int = 0
    refused: int = 0
    """Recipients get this answer; 0: they are taken."""
    mails: list[tuple[list[str], str]] = field(default_factory=list)
    """Recipients, and the text as it came."""


@contextmanager
def mail_server() -> Iterator[MailServer]:
    kept = MailServer()
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _handler(kept))
    kept.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(kept: MailServer) -> type[socketserver.StreamRequestHandler]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            recipients: list[str] = []
            self.say(220)
            while line := self.rfile.readline().decode().strip():
                verb = line.split(" ")[0].split(":")[0].upper()
                if verb == "RCPT":
                    recipients.append(line.partition("<")[2].partition(">")[0])
                    self.say(kept.refused or 250)
                elif verb == "DATA":
                    self.say(354)
                    lines = []
                    while (data := self.rfile.readline()) != b".\r\n":
                        lines.append(data.decode())
                    kept.mails.append((recipients, "".join(lines)))
                    self.say(250)
                elif verb == "STARTTLS":
                    self.say(502)
                elif verb == "QUIT":
                    self.say(221)
                    return
                else:
                    self.say(250)

        def say(self, code: int) -> None:
            self.wfile.write(f"{code} said\r\n".encode())

    return Handler
