"""What `why` is tested with: why.py MODE. Files named by a rank in /tmp change what it does."""

import mmap
import os
import sys
import threading
import time

mode, rank = sys.argv[1], int(os.environ.get("RANK", "0"))


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def train(work):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    t = torch.ones(200000)
    while True:
        dist.all_reduce(t)
        t.fill_(1)
        work()
        open("/tmp/why-trains", "w").close()
        while os.path.exists("/tmp/why-sleep-%d" % rank):
            time.sleep(600)


def late():
    """Rank 1 does not come to where ranks meet."""
    import torch.distributed as dist

    if rank == 1:
        time.sleep(600)
    dist.init_process_group("gloo")


def elsewhere():
    """All but rank 0 look for it on their own machine; in a world of more than there are they wait for one more."""
    import torch.distributed as dist

    if mode == "larger":
        os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) + 1)
    else:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("gloo")


def fetch():
    """Rank 1 asks whom /tmp/why-from names, once it is there, for as long as something comes."""
    import socket

    if rank == 1 and os.path.exists("/tmp/why-from"):
        at = open("/tmp/why-from").read().split(":")
        c = socket.create_connection((at[0], int(at[1])))
        c.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while c.recv(8):
            pass
    time.sleep(0.02)


def forked():
    """Rank 1 forks a child while a thread of it has a lock that the child wants, and looks each second whether it has ended."""
    if rank == 1 and os.path.exists("/tmp/why-trains"):
        lock = threading.Lock()
        lock.acquire()
        child = os.fork()
        if child == 0:
            lock.acquire()
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(1)
    time.sleep(0.02)


def piped():
    """Rank 1 waits for a program to end whose output it does not read."""
    import subprocess

    if rank == 1 and os.path.exists("/tmp/why-trains"):
        subprocess.Popen([sys.executable, "-c", "print('x' * 1000000)"], stdout=subprocess.PIPE).wait()
    time.sleep(0.02)


def queue_of_work():
    """Has one piece of work for each worker, and then none."""
    import socket

    listener, clients = socket.create_server(("", 6379)), []
    while True:
        clients.append(listener.accept()[0])
        clients[-1].sendall(b"work")
        clients[-1].recv(4)


def worker():
    import socket

    while True:
        try:
            c = socket.create_connection(("spark3", 6379))
            break
        except OSError:
            time.sleep(0.2)
    while c.recv(4) == b"work":
        c.sendall(b"done")


def chat():
    """Rank 0 has something for the others from time to time, who wait for it."""
    import socket

    at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        listener = socket.create_server(("", at[1]))
        others = [listener.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
        while True:
            time.sleep(10)
            [(c.sendall(b"work"), c.recv(8)) for c in others]
    while True:
        try:
            c = socket.create_connection(at)
            break
        except OSError:
            time.sleep(0.2)
    while c.recv(8):
        c.sendall(b"done")


def checkpoint():
    if rank == 0:
        with open("/tmp/why-checkpoint", "wb") as f:
            for _ in range(50):
                f.write(os.urandom(4 << 20))
                os.fsync(f.fileno())
    time.sleep(0.1)


def pieces():
    """Rank 0 saves a checkpoint for minutes, and does little in each of its pieces."""
    if rank == 0:
        with open("/tmp/why-pieces", "wb") as f:
            for i in range(1000):
                f.seek((i % 64) << 20)
                f.write(os.urandom(1 << 20))
                os.fsync(f.fileno())
                open("/tmp/why-trains", "w").close()
                time.sleep(0.2)


def page():
    """Reads pages of a large file here and there, as a model that is mapped is read; not before it is in its group."""
    import random

    with open("/tmp/why-pages", "wb") as f:
        for _ in range(160):
            f.write(os.urandom(1 << 20))
        f.flush()
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    while rank == 1 and not os.path.exists("/tmp/why-limited"):
        time.sleep(0.1)
    with open("/tmp/why-pages", "rb") as f:
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    m.madvise(mmap.MADV_RANDOM)
    while True:
        m[random.randrange(len(m))]
        if random.random() < 0.001:
            time.sleep(0.001)


def load():
    """Reads a model by pages, from a disk that is not in memory."""
    name = "/tmp/why-model"
    with open(name, "wb") as f:
        f.write(os.urandom(64 << 20))
    while True:
        with open(name, "rb") as f:
            os.fsync(f.fileno())
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
            sum(m[i] for i in range(0, len(m), 4096))
            m.close()


def lock_up():
    a, b = threading.Lock(), threading.Lock()

    def other():
        with b:
            time.sleep(0.2)
            with a:
                pass

    threading.Thread(target=other).start()
    with a:
        time.sleep(0.2)
        with b:
            pass


def pool():
    """Workers that have nothing to do, and a main thread that looks around."""
    import queue

    todo = queue.Queue()
    for _ in range(8):
        threading.Thread(target=todo.get, daemon=True).start()
    while True:
        time.sleep(0.5)


modes = {
    "train": lambda: train(lambda: time.sleep(0.02)),
    "uneven": lambda: train(lambda: spin(0.6) if rank == 0 else None),
    "late": late,
    "elsewhere": elsewhere,
    "larger": elsewhere,
    "forked": lambda: train(forked),
    "fetch": lambda: train(fetch),
    "piped": lambda: train(piped),
    "queue": queue_of_work,
    "worker": worker,
    "chat": chat,
    "checkpoint": lambda: train(checkpoint),
    "burn": lambda: spin(600),
    "burn-many": lambda: [threading.Thread(target=spin, args=(600,)).start() for _ in range(6)],
    "idle": lambda: time.sleep(600),
    "pieces": lambda: train(pieces),
    "page": page,
    "load": load,
    "lock": lambda: lock_up() if rank == 1 else time.sleep(600),
    "pool": pool,
}
modes[mode]()
