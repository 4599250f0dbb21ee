# A job on a Ray cluster: a task on each node, then it waits for a file, then for a worker at
# the second node's address that was not there before, and ends with 7. argv: a folder that all
# hosts share, and how many nodes there are.
import json, os, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

folder, count = sys.argv[1], int((sys.argv + ["3"])[2])
ray.init(log_to_driver=False)  # RAY_ADDRESS says where


@ray.remote(num_cpus=0)
def where():
    return ray.util.get_node_ip_address(), os.uname().nodename


def on(node):
    return ray.get(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote())


def nodes():
    return [n for n in ray.nodes() if n["Alive"]]


first = nodes()
seen = dict(on(n) for n in first)
with open(os.open(folder + "/token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
    f.write(os.environ["RAY_AUTH_TOKEN"])
while not os.path.exists(folder + "/go"):
    time.sleep(0.1)
old, again = {n["NodeID"] for n in first}, False
while not again:
    for n in nodes():
        if n["NodeID"] not in old and n["NodeManagerAddress"].endswith(".12"):
            again = on(n)[0].endswith(".12")
    time.sleep(0.5)
print(json.dumps({"seen": seen, "address": os.environ["RAY_ADDRESS"], "mode": os.environ["RAY_AUTH_MODE"], "rank": os.environ.get("RANK", ""), "again": again}), flush=True)
os._exit(7)
