"""A stand-in for exo 1.0.71: it takes the flags that launch gives it, and answers those paths of
exo's API that launch asks, in exo's words. It hears the other machines' stand-ins by multicast, if
they are of its namespace. It serves no model.

What it is to do wrong is in the model's name: too/big (exo has no room for it), un/known.
"""

import argparse
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import time

p = argparse.ArgumentParser(prog="EXO")
p.add_argument("--api-port", type=int, default=52415)
p.add_argument("--libp2p-port", type=int, default=0)
p.add_argument("--force-master", action="store_true")
p.add_argument("--offline", action="store_true")
args = p.parse_args()

NAMESPACE = os.environ["EXO_LIBP2P_NAMESPACE"]
HOST = socket.gethostname()
ME = "12D3Koo-" + HOST
addresses = re.findall(r"inet ([0-9.]+)/", subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=True).stdout)
known = {ME: {"addresses": addresses, "host": HOST, "instances": {}}}
looks = 0
lock = threading.Lock()


GROUP = ("239.255.7.7", 7777)


def tell():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    while True:
        with lock:
            text = json.dumps({"namespace": NAMESPACE, "me": ME, "node": {k: v for k, v in known[ME].items() if k != "instances"}})
        for address in addresses:
            if not address.startswith("127."):
                s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
                s.sendto(text.encode(), GROUP)
        time.sleep(0.2)


def hear():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(GROUP)
    for address in addresses:
        if not address.startswith("127."):
            s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP[0]) + socket.inet_aton(address))
    while True:
        said = json.loads(s.recv(65536))
        if said["namespace"] == NAMESPACE and said["me"] != ME:
            with lock:
                known[said["me"]] = said["node"]


def state():
    global looks
    instances = known[ME]["instances"]
    placed = instances.get("sparkrun", {}).get("MlxRingInstance")
    runners = {}
    if placed:
        looks += 1
        ready = looks > 3  # by looks and no clock: a slow machine misses no part of it
        runners = {r: {"RunnerReady": {}} if ready else {"RunnerLoading": {"layersLoaded": 3, "totalLayers": 16}} for r in placed["shardAssignments"]["runnerToShard"]}
    return {
        "instances": instances,
        "runners": runners,
        "downloads": {},
        "topology": {"nodes": list(known), "connections": {a: {b: [] for b in known if a != b} for a in known}},
        "nodeIdentities": {k: {"friendlyName": v["host"]} for k, v in known.items()},
        "nodeMemory": {k: {"ramAvailable": {"inBytes": 1 << 30}} for k in known},
        "nodeNetwork": {k: {"interfaces": [{"name": "?", "ipAddress": a} for a in v["addresses"]]} for k, v in known.items()},
    }


def placement(model, sharding, nodes):
    if model == "un/known":
        return 500, "Internal Server Error"
    if model == "too/big" or len(known) < nodes:
        return 400, {"error": {"message": "No cycles found with sufficient memory", "type": "Bad Request", "code": 400}}
    ring = sorted(known)
    # exo's own choice may be any address at which the other one answered: here one beside the fabric.
    at = {n: next(a for a in known[n]["addresses"] if not a.startswith(("127.", "192.168."))) for n in ring}
    return 200, {
        "MlxRingInstance": {
            "instanceId": "any",
            "shardAssignments": {
                "modelId": model,
                "runnerToShard": {"r-" + n: {sharding + "ShardMetadata": {"deviceRank": i, "worldSize": len(ring)}} for i, n in enumerate(ring)},
                "nodeToRunner": {n: "r-" + n for n in ring},
            },
            "hostsByNode": {n: [{"ip": "0.0.0.0" if m == n else at[m], "port": 5} for m in ring] for n in ring},
            "ephemeralPort": 5,
        }
    }


class API(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, body):
        text = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        path, _, query = self.path.partition("?")
        with lock:
            if path == "/node_id":
                self.answer(200, ME)
            elif path == "/state":
                self.answer(200, state())
            elif path == "/instance/placement":
                q = dict(re.findall(r"(\w+)=([^&]*)", query.replace("%2F", "/")))
                self.answer(*placement(q["model_id"], q["sharding"], int(q["min_nodes"])))
            else:
                self.answer(404, {"detail": "Not Found"})

    def do_POST(self):
        global looks
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if self.path == "/instance":
                ((_, of),) = body["instance"].items()
                known[ME]["instances"], looks = {of["instanceId"]: body["instance"]}, 0
                self.answer(200, {"message": "Command received."})
            elif self.path == "/v1/chat/completions":
                self.answer(200, {"model": body["model"], "choices": [{"message": {"role": "assistant", "content": "from " + HOST}}]})
            else:
                self.answer(404, {"detail": "Not Found"})

    def do_DELETE(self):
        with lock:
            known[ME]["instances"] = {}
            self.answer(200, {"message": "Command received."})


print("Starting EXO (a stand-in)", flush=True)
threading.Thread(target=hear, daemon=True).start()
threading.Thread(target=tell, daemon=True).start()
http.server.ThreadingHTTPServer(("0.0.0.0", args.api_port), API).serve_forever()
