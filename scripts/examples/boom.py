"""One rank raises; the others would never notice.

    sparkrun launch torchrun --nodes 3 -- boom.py [RANK [EXITCODE]]

The others wait, as ranks inside an NCCL collective do when a peer is gone: for
ever, with the API still looking healthy. Whoever launched them has to end them.
"""
import os
import sys
import threading

import torch.distributed as dist

bad = int(sys.argv[1]) if len(sys.argv) > 1 else 1
code = int(sys.argv[2]) if len(sys.argv) > 2 else 1  # 1 is what Python itself gives

dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} is at work, process {os.getpid()}", flush=True)
dist.barrier()  # all of them are
try:
    if dist.get_rank() == bad:
        raise RuntimeError("out of luck")
    threading.Event().wait()
except RuntimeError as why:
    print(f"rank {bad}: {why}", file=sys.stderr, flush=True)
    sys.exit(code)
