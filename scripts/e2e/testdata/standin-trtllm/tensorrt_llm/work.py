"""What the stand-in for TensorRT-LLM has its MPI ranks do. It computes nothing of a model."""

import array
import os
import sys


def look(model, tp):
    """Every rank says what it sees, once all of them are there."""
    from mpi4py.MPI import COMM_WORLD  # the server, which names this function, is no rank

    if model == "dies/early" and COMM_WORLD.rank == 1:
        print("worker lost its GPU", file=sys.stderr, flush=True)
        os._exit(9)
    total = array.array("i", [0])
    COMM_WORLD.Allreduce(array.array("i", [COMM_WORLD.rank + 1]), total)
    return {
        "Rank": COMM_WORLD.rank, "Size": COMM_WORLD.size, "TP": tp, "Sum": total[0],
        "Host": os.environ["SPARKRUN_HOST"], "PMI": [v for v in os.environ if v.startswith("PMI_")],
    }
