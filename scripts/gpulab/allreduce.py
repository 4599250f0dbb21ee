"""Sums on every rank, checked; --forever goes on until it is killed."""
import os
import sys

import torch
import torch.distributed as dist

gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", 0) if gpu else torch.device("cpu")
t = torch.empty((64 if gpu else 4) << 20, device=device)
want = world * (world + 1) / 2
n = 0
while n < 20 or "--forever" in sys.argv:
    t.fill_(rank + 1)
    dist.all_reduce(t)
    n += 1
    if n % 20 == 0:
        wrong = int((t != want).sum())
        print("GPULAB rank=%d pid=%d rounds=%d wrong=%d backend=%s" % (rank, os.getpid(), n, wrong, dist.get_backend()), flush=True)
        if wrong:
            sys.exit(1)
dist.destroy_process_group()
