"""A stand-in for TensorRT-LLM's module of this name: MPI rank 0, which takes tasks from the server
beside it, by a socket, and has every rank do them."""

import concurrent.futures
import multiprocessing.connection
import os
import signal

from mpi4py.futures import MPICommExecutor
from mpi4py.MPI import COMM_WORLD

host, port = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].removeprefix("tcp://").split(":")
key = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY"].encode()
with MPICommExecutor(COMM_WORLD) as executor, concurrent.futures.ThreadPoolExecutor(1) as own:
    server = multiprocessing.connection.Listener((host, int(port)), authkey=key).accept()
    while True:
        try:
            task, *args = server.recv()
        except EOFError:
            while True:  # the real one's ZeroMQ does not notice that the server has gone
                signal.pause()
        tasks = [own.submit(task, *args)] + [executor.submit(task, *args) for _ in range(COMM_WORLD.size - 1)]
        server.send([t.result() for t in tasks])
