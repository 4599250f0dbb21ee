"""A stand-in for `vllm serve`: it takes the flags that launch gives it, meets the other
machines' stand-ins as vLLM does, and answers /health, /metrics and /v1/models. It serves no model.

What it is to do wrong is in the model's name: missing/weights, too/big, dies/early (a
worker, before the head is ready), dies/early-head.
"""

import argparse
import http.server
import json
import os
import socket
import sys
import time

MODS = []  # a recipe's mod may put its name here


def arguments():
    p = argparse.ArgumentParser(prog="vllm serve", add_help=False)
    p.add_argument("--help", nargs="?", const="all")
    p.add_argument("model", nargs="?")
    p.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    p.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    p.add_argument("--nnodes", type=int, default=1)
    p.add_argument("--node-rank", type=int, default=0)
    p.add_argument("--master-addr", default="127.0.0.1")
    p.add_argument("--master-port", type=int, default=29501)
    p.add_argument("--headless", action="store_true")
    p.add_argument("--host", default="0.0.0.0")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--max-model-len", type=int)
    p.add_argument("--served-model-name")
    p.add_argument("--distributed-executor-backend", choices=["ray", "mp"])
    a = p.parse_args(sys.argv[2:])
    if a.help:
        p.print_help()
        sys.exit(0)
    return a


def misbehave(a):
    if a.model == "missing/weights":
        print("INFO resolving missing/weights", flush=True)
        raise OSError("missing/weights is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'")
    if a.model == "too/big" and a.node_rank == 0:
        print("(EngineCore pid=7) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 GiB.", flush=True)
        raise RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")
    if a.model == "dies/early" and a.headless or a.model == "dies/early-head" and not a.headless:
        print("worker lost its GPU", file=sys.stderr, flush=True)
        os._exit(9)


def worker(a):
    """Waits for the head, then for its end."""
    while True:
        try:
            head = socket.create_connection((a.master_addr, a.master_port), timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    head.settimeout(None)
    head.sendall(os.environ["VLLM_HOST_IP"].encode() + b"\n")
    head.recv(1)
    sys.exit("lost the head")


def meet(a):
    """Waits for all workers."""
    at = socket.create_server((a.master_addr, a.master_port))
    workers = []
    while len(workers) < a.nnodes - 1:
        print(f"{len(workers) + 1} of {a.nnodes} nodes are here", flush=True)
        c, _ = at.accept()
        workers.append((c, c.makefile().readline().strip()))
    return workers


def on_ray(a):
    import ray

    ray.init(log_to_driver=False)
    with open(os.path.join(os.environ["VLLM_CONFIG_ROOT"], "ray_non_carry_over_env_vars.json")) as f:
        own = json.load(f)

    @ray.remote(num_gpus=1)
    def seen():
        return {k: os.environ.get(k, "") for k in own if k in os.environ}

    waits = [seen.options(scheduling_strategy="SPREAD").remote() for _ in range(a.tensor_parallel_size)]
    return ray.get(waits)


def compiled():
    """Whether an earlier one has left its compiled code, where vLLM keeps it."""
    root = os.environ.get("VLLM_CACHE_ROOT")
    if not root:
        return False
    kernel = os.path.join(root, "torch_compile_cache", "kernel")
    if os.path.exists(kernel):
        return True
    os.makedirs(os.path.dirname(kernel), exist_ok=True)
    open(kernel, "w").close()
    return False


def main():
    a = arguments()
    misbehave(a)
    if a.headless:
        worker(a)
    met = on_ray(a) if a.distributed_executor_backend == "ray" else meet(a) if a.nnodes > 1 else []
    began = time.time()
    warm = compiled()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = {
                "/health": "",
                "/metrics": f'vllm:num_requests_running{{model_name="{a.model}"}} 0\nvllm:generation_tokens_total{{model_name="{a.model}"}} {int(time.time() - began)}\n',
                "/v1/models": json.dumps({"data": [{"id": a.model}], "argv": sys.argv[1:], "mods": MODS, "warm": warm, "met": [m if isinstance(m, dict) else m[1] for m in met]}),
            }.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer((a.host, a.port), Handler)
    print(f"Starting vLLM API server on http://{a.host}:{a.port}", flush=True)
    server.serve_forever()


main()
