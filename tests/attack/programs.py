"""Programs of hostile ranks, as text for `python3 -c`."""

RAS_BOMB = r"""
import os, runpy, socketserver, threading, time
MIB = 1 << 20

class Bomb(socketserver.StreamRequestHandler):
    def handle(self):
        said = self.rfile.readline()
        self.wfile.write(b"SERVER PROTOCOL 2\n")
        for line in self.rfile:
            if line.upper().startswith((b"VERBOSE", b"STATUS")):
                print("asked", line, flush=True)
                self.wfile.write(b'{"communicators":[], "x":[')
                for _ in range(64):
                    self.wfile.write(b"[]," * (MIB // 3))
                self.wfile.write(b"[]]}")
                return
            self.wfile.write(b"OK\n")
            if line.upper().startswith(b"MONITOR"):
                print("asked", line, flush=True)
                while True:
                    self.wfile.write(b"x" * 65000 + b"\n")

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True
    def handle_error(self, *_):
        pass

threading.Thread(target=Server(("0.0.0.0", 28028), Bomb).serve_forever, daemon=True).start()
def lock_up():
    lock = threading.Lock()
    lock.acquire()
    time.sleep = lambda _: lock.acquire()

if os.environ["JOB_COMPLETION_INDEX"] == "1":
    threading.Timer(45, lock_up).start()
runpy.run_path("/train/train.py", run_name="__main__")
"""
"""Rank 1 locks itself up after a while of real training; both answer NCCL with more than can be kept."""

CROWD = r"""
import os, sys
COUNT, LINKS = 300, 32
RANK = '''
import os, select, socket, time
here, count, links = int(os.environ["RANK"]), %d, %d
listener = socket.create_server(("127.0.0.1", 20000 + here), backlog=links)
def connect():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", 20000 + (here + 1) %% count))
        except ConnectionRefusedError:
            time.sleep(0.5)
to_next = [connect() for _ in range(links)]
to_previous = [listener.accept()[0] for _ in range(links)]
for step in range(60):
    to_next[0].sendall(b"x" * 20000)
    to_previous[0].recv(20000, socket.MSG_WAITALL)
    time.sleep(0.5)
print("silent", flush=True)
select.select([to_previous[0]], [], [])
''' % (COUNT, LINKS)
for number in range(COUNT):
    if os.fork() == 0:
        env = {"RANK": str(number), "WORLD_SIZE": str(COUNT), "MASTER_ADDR": "localhost"}
        os.execve(sys.executable, ["python3", "-S", "-c", RANK], {**os.environ, **env})
    if number % 20 == 0:
        print("rank", number, flush=True)
for _ in range(COUNT):
    os.wait()
"""
"""A ring of 300 ranks in one pod, each with 64 connections, that all stop sending at once."""

FORKS = r"""
import os, signal, time
for number in range(4500):
    if os.fork() == 0:
        signal.pause()
        os._exit(0)
print("crowded", flush=True)
while True:
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                break
        except ChildProcessError:
            break
    time.sleep(0.05)
"""
"""More sleeping children than a table of the sensor has rows, and a thousand exits a second on top."""

IDLES = r"""
import socket, sys, time
kept = []
while True:
    try:
        for _ in range(20):
            link = socket.create_connection((ADDRESS, 9465), 2)
            link.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
            kept.append(link)
    except OSError:
        time.sleep(0.2)
    if len(kept) >= 400:
        print("idles", flush=True)
        del kept[:200]
    time.sleep(0.05)
"""
"""Hundreds of half requests to an agent's metrics port, renewed for ever; ADDRESS is put before it."""
