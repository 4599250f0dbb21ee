"""All-reduce of real tensors over gloo, with a right answer to check.

    sparkrun launch torchrun --nodes 3 --nproc-per-node 2 -- allreduce.py
"""
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
rank, world = dist.get_rank(), dist.get_world_size()

# Every rank brings rank+1, so the sum tells when one is missing or counted twice.
tensor = torch.full((1 << 20,), float(rank + 1))
dist.all_reduce(tensor)
want = world * (world + 1) // 2
assert bool((tensor == want).all()), f"rank {rank}: sum is {tensor[0].item()}, want {want}"

print(f"rank={rank} world={world} host={socket.gethostname()} sum={int(tensor[0].item())}", flush=True)
dist.barrier()
dist.destroy_process_group()
