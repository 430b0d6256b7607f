"""In its own network namespace: a connection whose packets get lost from one moment on.

Prints "ready PORT", waits for a line, cuts the loopback device, sends 1,000 bytes, prints "cut".
"""

import socket
import subprocess
import sys

LOSE = """
table inet cut {
  chain input { type filter hook input priority 0; tcp dport %d drop; }
}
"""


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    sender = socket.create_connection(("127.0.0.1", port))
    receiver, _ = listener.accept()
    print("ready", port, flush=True)
    sys.stdin.readline()
    subprocess.run(["nft", "-f", "-"], input=LOSE % port, text=True, check=True)
    sender.send(bytes(1000))
    print("cut", flush=True)
    sys.stdin.readline()
    receiver.close()


main()
