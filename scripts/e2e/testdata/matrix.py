"""Ranks of the fault matrix (matrix_test.go): matrix.py WITNESS MODE [ARG...].

Each writes what it does, and when, into a file of its own, WITNESS.RANK: that
is the proof, and not what sparkrun says. Nothing is imported that is slow.
"""
import os
import select
import signal
import socket
import sys
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
witness = os.open(f"{sys.argv[1]}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


def says(what, value=0):
    os.write(witness, f"{what} {time.time_ns()} {value}\n".encode())


def wait():
    while True:
        signal.pause()


def meet():
    """Connects every rank with rank 0, and comes back when all are there. The port
    is taken as strictly as can be, without SO_REUSEADDR; others come again
    only if they are refused: a connection that breaks was somebody else's."""
    port = int(os.environ["MASTER_PORT"])
    if rank == 0:
        with socket.socket() as ear:
            ear.bind(("", port))
            ear.listen(world)
            peers = [ear.accept()[0] for _ in range(world - 1)]
        for p in peers:
            p.sendall(b"!")
        return peers
    while True:
        s = socket.socket()
        try:
            s.connect((os.environ["MASTER_ADDR"], port))
            break
        except ConnectionRefusedError:
            s.close()
            time.sleep(0.002)
    if s.recv(1) != b"!":
        raise EOFError("not the rank 0 of this job")
    return [s]


def one_dies(victim, how, slack):
    """Row 1. All are connected, then one goes; the others see it and go too, at
    once or slack seconds later, or see nothing, ever."""
    peers = meet()
    if rank == int(victim):
        says("dies")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise RuntimeError("out of luck")
        os._exit(7)
    if how == "unseen":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait()
    select.select(peers, [], [])
    time.sleep(float(slack))
    if how == "raise":
        raise ConnectionResetError(104, "Connection reset by peer")
    os._exit(1)


def waits():
    """Row 3."""
    says("up")
    wait()


def daemons(then):
    """Row 4. Processes in sessions of their own, without parent, name, environment
    or descriptors; one that runs away from who looks for it, one that is stopped."""
    for kind in range(3):
        if os.fork():
            os.wait()
            continue
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        for sig in signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
            signal.signal(sig, signal.SIG_IGN)
        os.closerange(0, 256)
        if kind == 0:
            os.execve("/bin/sleep", ["sleep", "3600"], {})
        if kind == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(0.005)
            if os.fork():
                os._exit(0)
            os.setsid()
    says("up")
    if then == "stop":
        wait()


def deaf():
    """Row 5."""
    signal.signal(signal.SIGTERM, lambda *_: says("term"))
    says("up")
    while True:
        wait()


def line(i):
    return b"%d %s\n" % (i, b"x" * (i * 7919 % 200))


def writes(lines):
    """Row 11."""
    says("up")
    for i in range(int(lines)):
        os.write(1, line(i))
        time.sleep(0.001)
    says("wrote")


def pours(count, go):
    """Row 18. Blocks of 64 KiB as fast as they are taken, and a few more later; the
    longest that one of them took."""
    for blocks in int(count), 16:
        longest = 0
        for _ in range(blocks):
            began = time.monotonic_ns()
            n = 0
            while n < 65536:
                n += os.write(1, b"y" * (65536 - n))
            longest = max(longest, time.monotonic_ns() - began)
        says("poured", longest)
        while not os.path.exists(go):
            time.sleep(0.01)


def paced(seconds, rate):
    """Row 33. So many bytes a second, a write each 10 ms; how long it took."""
    block = b"z" * (int(rate) // 100 - 1) + b"\n"
    says("up")
    began = time.monotonic()
    for i in range(int(seconds) * 100):
        os.write(1, block)
        time.sleep(max(0, began + (i + 1) / 100 - time.monotonic()))
    says("wrote", int((time.monotonic() - began) * 1e9))


def ports(fail):
    """Row 32. All meet at rank 0, who closes first: its port stays in TIME_WAIT. The
    first tries fail."""
    peers = meet()
    again = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    says("met", os.environ["MASTER_PORT"])
    if rank == 0:
        for p in peers:
            p.close()
    else:
        peers[0].recv(1)  # the end
    if again < int(fail):
        if rank == 0:
            os._exit(9)
        wait()


def lives(seconds):
    """Row 34."""
    says("up")
    time.sleep(float(seconds))
    os._exit(3)


def starts(seconds):
    """Rows 14, 16, 17. Which try it is, and a good end."""
    says("start", os.environ["TORCHELASTIC_RESTART_COUNT"])
    time.sleep(float(seconds))


def beats():
    """Rows 21 to 23, 30. That it lives, and in which try."""
    while True:
        says("beat", os.environ["TORCHELASTIC_RESTART_COUNT"])
        time.sleep(0.02)


modes = {"one-dies": one_dies, "waits": waits, "daemons": daemons, "deaf": deaf, "writes": writes,
         "pours": pours, "paced": paced, "ports": ports, "lives": lives, "starts": starts, "beats": beats}
modes[sys.argv[2]](*sys.argv[3:])
