"""sweep.py OPERATION MIN MAX FACTOR ITERS WARMUP: one collective, over growing messages.

Prints what nccl-tests prints: sizes, times, bandwidths and wrong elements mean the same
(nccl-tests, doc/PERFORMANCE.md). Ranks meet by MASTER_ADDR and MASTER_PORT, as under
torchrun. Without a GPU it runs over gloo and says so.
"""
import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
except (ImportError, OSError) as e:  # OSError: a library of CUDA's is missing
    sys.exit("sparkrun sweep: %s cannot import torch: %s" % (sys.executable, e))

FACTORS = {  # of algbw in busbw, for n ranks
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "sendrecv": lambda n: 1,
}
NOT_BY_GLOO = ("reduce_scatter", "alltoall")
CHUNK = 1 << 22  # elements checked at a time: what is expected needs memory, too
SLOW = 2.0       # seconds that a size may take; over a slow link its iterations are fewer


def pattern(rank, begin, end, device):
    """What rank sends: small whole numbers, whose sums a float holds exactly."""
    return ((torch.arange(begin, end, device=device) * 7 + rank * 31) % 251).to(torch.float32)


def fill(buffer, rank):
    for begin in range(0, buffer.numel(), CHUNK):
        end = min(begin + CHUNK, buffer.numel())
        buffer[begin:end] = pattern(rank, begin, end, buffer.device)


def count_wrong(buffer, expected):
    wrong = torch.zeros(1, dtype=torch.float64, device=buffer.device)
    for begin in range(0, buffer.numel(), CHUNK):
        end = min(begin + CHUNK, buffer.numel())
        wrong += (buffer[begin:end] != expected(begin, end)).sum()
    return wrong


class Test:
    """One operation on messages of one size; see buffers for whose size that is."""

    def __init__(self, op, size, rank, world, device):
        self.op, self.rank, self.world, self.device = op, rank, world, device
        whole = size // 4 // world * world
        part = whole // world
        self.count = {"all_gather": part, "reduce_scatter": part, "alltoall": part}.get(op, whole)
        self.bytes = whole * 4
        sent, got = {"all_gather": (part, whole), "reduce_scatter": (whole, part)}.get(op, (whole, whole))
        self.send = torch.zeros(sent, dtype=torch.float32, device=device)
        self.recv = self.send if op in ("all_reduce", "broadcast") else torch.zeros(got, dtype=torch.float32, device=device)

    def run(self):
        if self.op == "all_reduce":
            dist.all_reduce(self.recv)
        elif self.op == "broadcast":
            dist.broadcast(self.recv, 0)
        elif self.op == "all_gather":
            if dist.get_backend() == "nccl":
                dist.all_gather_into_tensor(self.recv, self.send)
            else:
                dist.all_gather(list(self.recv.chunk(self.world)), self.send)
        elif self.op == "reduce_scatter":
            dist.reduce_scatter_tensor(self.recv, self.send)
        elif self.op == "alltoall":
            dist.all_to_all_single(self.recv, self.send)
        else:
            right, left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
            if self.world == 1:
                self.recv.copy_(self.send)
                return
            for r in dist.batch_isend_irecv([dist.P2POp(dist.isend, self.send, right), dist.P2POp(dist.irecv, self.recv, left)]):
                r.wait()

    def wrong(self):
        """Runs it once more, on numbers that tell ranks and places apart."""
        fill(self.send, self.rank)
        self.run()
        part, me = self.count, self.rank

        def summed(begin, end):
            return sum(pattern(r, begin, end, self.device) for r in range(self.world))

        def of(rank, shift=0):
            return lambda begin, end: pattern(rank, begin + shift, end + shift, self.device)

        if self.op == "all_reduce":
            return count_wrong(self.recv, summed)
        if self.op == "broadcast":
            return count_wrong(self.recv, of(0))
        if self.op == "reduce_scatter":
            return count_wrong(self.recv, lambda begin, end: summed(begin + me * part, end + me * part))
        if self.op == "sendrecv":
            return count_wrong(self.recv, of((me - 1) % self.world))
        shift = me * part if self.op == "alltoall" else 0
        return sum(count_wrong(self.recv[r * part:(r + 1) * part], of(r, shift)) for r in range(self.world))


def settle(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


def timed(test, n):
    settle(test.device)
    begin = time.perf_counter()
    for _ in range(n):
        test.run()
    settle(test.device)
    return (time.perf_counter() - begin) / n


def agreed(value, op, device):
    """The same on every rank."""
    t = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(t, op=op)
    return t.item()


def free_bytes(device):
    """Memory to be had: on a machine whose GPU shares it, the kernel's word counts."""
    free = 1 << 62
    with open("/proc/meminfo") as f:
        for line in f:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    if device.type == "cuda":
        free = min(free, torch.cuda.mem_get_info()[0])
    return free


def human(n):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return "%g %s" % (round(n, 1), unit)
        n /= 1024


def sizes(low, high, factor):
    while low <= high:
        yield low
        low *= factor


def main(op, low, high, factor, iters, warmup):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpu = torch.cuda.is_available()
    backend = "nccl" if gpu else "gloo"
    if not gpu and op in NOT_BY_GLOO:
        sys.exit("%s: gloo cannot do it, and rank %d sees no GPU for NCCL; it can do all_gather, all_reduce, broadcast and sendrecv" % (op, rank))
    device = torch.device("cpu")
    name = "no GPU"
    if gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        name = torch.cuda.get_device_name(device)
    dist.init_process_group(backend)

    def say(text):
        if rank == 0:
            print(text, flush=True)

    # Two buffers of the largest message at most, for each rank of a machine, and as much again for the rest of it.
    room = int(agreed(free_bytes(device), dist.ReduceOp.MIN, device)) // 4 // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    version = ".".join(map(str, torch.cuda.nccl.version())) if gpu else "none"
    say("# sparkrun sweep 1 torch=%s nccl=%s backend=%s" % (torch.__version__, version, backend))
    say("# Collective test starting: %s" % op)
    say("# nRanks %d minBytes %d maxBytes %d step: %d(factor) warmup iters: %d iters: %d" % (world, low, high, factor, warmup, iters))
    names = [None] * world
    dist.all_gather_object(names, "%s device %s %s" % (os.environ.get("SPARKRUN_HOST", "?"), device.index or 0, name))
    say("# Using devices")
    for r, text in enumerate(names):
        say("#  Rank %2d on %s" % (r, text))
    if high > room:
        say("# maxBytes lowered to %d (%s): a quarter of the memory that is free on the fullest node" % (room, human(room)))
        high = room
    say("# %10s  %12s  %8s  %6s  %6s  %10s  %7s  %7s  %6s" % ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"))
    say("# %10s  %12s  %8s  %6s  %6s  %10s  %7s  %7s  %6s" % ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""))

    bad, buses = 0, []
    for size in sizes(low, high, factor):
        test = Test(op, size, rank, world, device)
        if test.bytes == 0:
            continue
        timed(test, max(1, warmup))
        once = agreed(timed(test, 1), dist.ReduceOp.MAX, device)
        seconds = agreed(timed(test, max(1, min(iters, int(SLOW / once)))), dist.ReduceOp.SUM, device) / world
        wrong = int(agreed(test.wrong().item(), dist.ReduceOp.SUM, device))
        alg = test.bytes / seconds / 1e9
        bus = alg * FACTORS[op](world)
        bad += wrong
        buses.append(bus)
        redop = "sum" if op in ("all_reduce", "reduce_scatter") else "none"
        say("%12d  %12d  %8s  %6s  %6d  %10.2f  %7.3f  %7.3f  %6d" % (test.bytes, test.count, "float", redop, 0 if op == "broadcast" else -1, seconds * 1e6, alg, bus, wrong))
        del test
    say("# Out of bounds values : %d %s" % (bad, "FAILED" if bad else "OK"))
    say("# Avg bus bandwidth    : %g" % (sum(buses) / max(1, len(buses))))
    say("# Collective test concluded: %s" % op)
    dist.barrier()
    dist.destroy_process_group()
    return 1 if bad else 0


try:
    code = main(sys.argv[1], *map(int, sys.argv[2:7]))
except KeyboardInterrupt:  # Ctrl-C in nccl-test: no trace says more
    code = 130
sys.exit(code)
