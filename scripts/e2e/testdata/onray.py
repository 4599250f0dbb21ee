# A job on a Ray cluster of three: a task on each node, then it waits for a file, and
# ends with 7. argv: a folder that all hosts share.
import json, os, sys, time
import ray

folder = sys.argv[1]
ray.init(log_to_driver=False)  # RAY_ADDRESS says where


@ray.remote(num_cpus=1)
def where():
    time.sleep(0.5)
    return ray.util.get_node_ip_address(), os.uname().nodename


seen, until = {}, time.time() + 100
while len(seen) < 3 and time.time() < until:
    seen.update(dict(ray.get([where.options(scheduling_strategy="SPREAD").remote() for _ in range(3)])))
with open(os.open(folder + "/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
    f.write(os.environ["RAY_AUTH_TOKEN"])
print(json.dumps({"seen": seen, "address": os.environ["RAY_ADDRESS"], "mode": os.environ["RAY_AUTH_MODE"], "rank": os.environ.get("RANK", "")}), flush=True)
while not os.path.exists(folder + "/go"):
    time.sleep(0.1)
os._exit(7)
