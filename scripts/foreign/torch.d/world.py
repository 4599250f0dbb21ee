"""One rank of torch's own tests of torch.distributed, by gloo, in the world that the environment tells.

They are written for ranks that the test itself starts, or that mpirun did. Here, as there, a test is a method of
_DistTestBase; it gets a process group of its own over the one store that env:// leads to, so that none suffers from
another's failure. Each is noted in RANK.rank, a line "pass|fail|skip NAME".
"""

import os
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta

os.environ["BACKEND"] = "gloo"

import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.distributed_test import DistributedTest, initialize_temp_directories

store, rank, world = next(dist.rendezvous("env://", timeout=timedelta(seconds=60)))


def meet(point):
    if store.add(point, 1) == world:
        store.set(point + "/all", "here")
    store.wait([point + "/all"], timedelta(seconds=60))


class Test(DistributedTest._DistTestBase, TestCase):
    rank, world_size = rank, world
    barriers = 0

    def _barrier(self, *_, **__):  # theirs is of files on one host; some come to it with a broken group
        self.barriers += 1
        meet(f"{self.id()}/{self.barriers}")


def run(name):
    if getattr(getattr(Test, name), "__unittest_skip__", False):
        return "skip"
    dist.init_process_group("gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world, timeout=timedelta(seconds=30))
    test = Test(name)
    try:
        test.setUp()
        meet(name + "/begin")  # before one has ended, and closes what another still connects to
        getattr(test, name)()
        return "pass"
    except unittest.SkipTest:
        return "skip"
    except SystemExit as e:  # how their decorators skip
        return "skip" if e.code else "pass"
    except Exception:
        traceback.print_exc()
        return "fail"
    finally:
        test.doCleanups()
        meet(name + "/end")
        if dist.is_initialized():
            dist.destroy_process_group()


with tempfile.TemporaryDirectory() as folder, open(f"{rank}.rank", "w", buffering=1) as notes:
    initialize_temp_directories(folder)
    for name in sorted(n for n in dir(Test) if n.startswith("test_") and n not in sys.argv[1:]):
        print("==", name, file=sys.stderr, flush=True)
        print(run(name), name, file=notes)
    store.add("ended", 1)
    while rank == 0 and store.add("ended", 0) < world:  # the store is this rank's
        time.sleep(0.1)
