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

BLANKS = r"""
import sys, time
while True:
    sys.stdout.write("step" + " " * 4000 + "\n")
    sys.stdout.flush()
    sys.stderr.write("Traceback (most recent call last):\n")
    sys.stderr.flush()
    print("written", flush=True)
    time.sleep(0.2)
"""
"""What made the search for a step cubic: blanks without a number, and a traceback beside them."""

_RING = r"""
import os, sys
COUNT = 4
RANK = '''
import ctypes, mmap, os, resource, select, socket, threading, time
here, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
@PREPARE@
listener = socket.create_server(("127.0.0.1", 20000 + here), backlog=4)
def connect():
    while True:
        try:
            return socket.create_connection(("127.0.0.1", 20000 + (here + 1) % count))
        except ConnectionRefusedError:
            time.sleep(0.5)
to_next, to_previous = connect(), listener.accept()[0]
for step in range(60):
    to_next.sendall(b"x" * 20000)
    to_previous.recv(20000, socket.MSG_WAITALL)
    time.sleep(0.5)
print("silent", flush=True)
select.select([to_previous], [], [])
'''
for number in range(COUNT):
    if os.fork() == 0:
        env = {"RANK": str(number), "WORLD_SIZE": str(COUNT), "MASTER_ADDR": "localhost"}
        env |= {"TORCH_FR_DUMP_TEMP_FILE": "/tmp/dump-", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/pipe-"}
        os.execve(sys.executable, ["python3", "-S", "-c", RANK], {**os.environ, **env})
for _ in range(COUNT):
    os.wait()
"""


def ring(prepare: str) -> str:
    """Four ranks of one pod that train for half a minute and then stop sending at once; each prepares itself first."""
    return _RING.replace("@PREPARE@", prepare)


RECORDER_BOMB = r"""
pipe, dump = f"/tmp/pipe-{here}.pipe", f"/tmp/dump-{here}"
os.mkfifo(pipe)
def answer():
    parts = 1_600_000 if here % 2 else 400_000
    while True:
        with open(pipe, "rb") as asked:
            asked.read(1)
        with open(dump + ".new", "wb") as out:
            out.write(b'{"version":"2.10","x":[' + b"[[]]," * parts + b"0]}")
        os.replace(dump + ".new", dump)
        print("asked", flush=True)
threading.Thread(target=answer, daemon=True).start()
"""
"""Answers each question for the flight recorder's dump with 2 or 8 MiB of brackets."""

LONG_LINKS = r"""
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.chdir("/dev/shm")
for _ in range(15):
    os.makedirs("d" * 250, exist_ok=True)
    os.chdir("d" * 250)
for number in range(min(hard - 64, 16000)):
    os.open("f" * 180 + str(number % 50), os.O_CREAT | os.O_RDWR)
os.chdir("/")
print("prepared", flush=True)
"""
"""16,000 descriptors with paths of 4 KiB."""

MANY_MAPS = r"""
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
code = os.open("/dev/shm/" + "a" * 200, os.O_CREAT | os.O_RDWR)
os.ftruncate(code, 4 * mmap.PAGESIZE)
for number in range(65_000):
    if libc.mmap(None, 4096, 5, 2, code, 8192 * (number % 2)) in (None, ctypes.c_void_p(-1).value):
        break
print("prepared", number, flush=True)
"""
"""65,000 executable mappings: of different offsets, the kernel joins no two of them."""

SOCKETS = r"""
import os, resource, signal, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for part in range(4):
    if os.fork() == 0:
        kept = []
        for number in range(min(hard - 64, 16_500)):
            listener = socket.socket()
            listener.bind((f"127.{part + 10}.{number >> 8 & 255}.{1 + number % 250}", 0))
            listener.listen(1)
            kept.append(listener)
        print("bound", len(kept), flush=True)
        signal.pause()
signal.pause()
"""
"""66,000 listening sockets in four processes of one pod, where a process may have as many."""
