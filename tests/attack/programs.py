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
import os, socket, sys, time
COUNT, LINKS = 300, 24
listener = socket.create_server(("127.0.0.1", 29500), backlog=4096)
RANK = '''
import select, socket, sys, time
links = [socket.create_connection(("127.0.0.1", 29500)) for _ in range(%d)]
end = time.monotonic() + 40
while time.monotonic() < end:
    for each in links[:2]:
        each.send(b"x" * 20000)
        each.recv(1 << 16)
    time.sleep(1)
print("silent", flush=True)
select.select([links[0]], [], [])
''' % LINKS
for number in range(COUNT):
    if os.fork() == 0:
        listener.close()
        env = {"RANK": str(number), "WORLD_SIZE": str(COUNT), "MASTER_ADDR": "localhost"}
        os.execve(sys.executable, ["python3", "-S", "-c", RANK], {**os.environ, **env})
    if number % 20 == 0:
        print("rank", number, flush=True)
import selectors
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            near, _ = listener.accept()
            selector.register(near, selectors.EVENT_READ)
        else:
            data = key.fileobj.recv(1 << 16)
            key.fileobj.send(data[:1]) if data else selector.unregister(key.fileobj)
"""
"""300 ranks in one pod, with many connections each, that all stop sending at once."""

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
