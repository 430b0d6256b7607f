"""First process of a guest: does what the host asks, one JSON object a line on a serial port.

{"run": ["ls"], "timeout": 9} gives {"code": 0, "output": "..."}; with "background": "LOG" it goes
on, its output in that file. {"python": "..."} runs in this process, where names stay.
"""

import contextlib
import io
import json
import os
import subprocess
import traceback
from pathlib import Path
from typing import Any

NAMES: dict[str, Any] = {}


def port() -> int:
    for path in Path("/sys/class/virtio-ports").glob("*/name"):
        if path.read_text().strip() == "agent":
            return os.open(f"/dev/{path.parent.name}", os.O_RDWR)
    raise SystemExit("no agent port")


def run(request: dict[str, Any]) -> tuple[int, str]:
    if request.get("background"):
        with open(request["background"], "wb") as log:
            child = subprocess.Popen(
                request["run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return 0, str(child.pid)
    done = subprocess.run(
        request["run"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=request.get("timeout", 60),
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def python(request: dict[str, Any]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(request["python"], NAMES)
    return 0, said.getvalue()


def answer(line: bytes) -> bytes:
    request = json.loads(line)
    try:
        code, output = run(request) if "run" in request else python(request)
    except BaseException:  # noqa: BLE001 - whatever it was, the host must learn of it
        code, output = -1, traceback.format_exc()
    return json.dumps({"code": code, "output": output}).encode() + b"\n"


def main() -> None:
    os.chdir("/")
    fd = port()
    os.write(fd, b'{"ready": true}\n')
    pending = b""
    while True:
        pending += os.read(fd, 65536)
        *lines, pending = pending.split(b"\n")
        for line in lines:
            reply = answer(line)
            while reply:
                reply = reply[os.write(fd, reply) :]


if __name__ == "__main__":
    main()
