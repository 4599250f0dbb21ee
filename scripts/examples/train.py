"""Data-parallel training of a line, the smallest job that really trains.

    sparkrun launch torchrun --nodes 3 -- train.py --steps 60

Each rank draws its own data for y = 3x + 2 and DistributedDataParallel averages
the gradients, so all ranks end with the same weights, near 3 and 2.

With --checkpoint PATH, on a disk that all machines share, rank 0 writes down each
step, and a job that is started again goes on from there, on as many ranks as
there are then:

    sparkrun launch torchrun --nodes 2:3 --max-restarts 2 -- train.py --checkpoint /shared/line.pt
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
parser.add_argument("--checkpoint", help="a file to go on from, and to write each step to")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # own data for every rank
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)

done = 0
if args.checkpoint and os.path.exists(args.checkpoint):
    saved = torch.load(args.checkpoint)
    done = saved["step"]
    model.module.load_state_dict(saved["model"])
    print(f"goes on after step {done} on {dist.get_world_size()} ranks", flush=True)

for step in range(done + 1, args.steps + 1):
    x = torch.rand(256, 1) * 2 - 1
    loss = ((model(x) - (3 * x + 2)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if args.checkpoint and rank == 0:
        torch.save({"step": step, "model": model.module.state_dict()}, args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)  # whole or not at all
    print(f"step {step} loss {loss.item():.5f}", flush=True)
    time.sleep(args.pause)

line = model.module
weights = torch.tensor([line.weight.item(), line.bias.item()])
everywhere = [torch.empty(2) for _ in range(dist.get_world_size())]
dist.all_gather(everywhere, weights)
assert all(bool(torch.equal(w, weights)) for w in everywhere), "the ranks' weights differ"
assert abs(weights[0] - 3) < 0.1 and abs(weights[1] - 2) < 0.1, f"not trained: {weights.tolist()}"
print(f"rank {rank}: y = {weights[0]:.2f} x + {weights[1]:.2f}", flush=True)
dist.destroy_process_group()
