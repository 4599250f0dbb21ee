"""A stand-in for llama.cpp's llama-server and, without a model, for its ggml-rpc-server: it takes the flags that
launch gives them, and answers those paths that launch asks, in their words. It serves no model.
"""

import argparse
import http.server
import json
import os
import socket
import sys
import threading
import time

p = argparse.ArgumentParser()
p.add_argument("-m", dest="model")
p.add_argument("--rpc", default="")
p.add_argument("--metrics", action="store_true")
p.add_argument("--host", required=True)
p.add_argument("--port", type=int, required=True)
p.add_argument("--ctx-size", type=int)
args = p.parse_args()

if not args.model:
    print("Starting RPC server v0.0.0 (a stand-in)", flush=True)
    listener = socket.create_server((args.host, args.port))
    while True:
        client, _ = listener.accept()
        while client.recv(64):
            client.sendall(b"here")

if not os.path.exists(args.model):
    print(f"0.00.006.372 E gguf_init_from_file: failed to open GGUF file '{args.model}' (No such file or directory)", file=sys.stderr)
    sys.exit(1)

workers = [w.rsplit(":", 1) for w in args.rpc.split(",") if w]
links = [socket.create_connection((host, int(port))) for host, port in workers]
ready = time.time() + 1.5
tokens = 0


def ask():
    """Asks all RPC servers, as each token does."""
    try:
        for link in links:
            link.sendall(b"there?")
            if not link.recv(64):
                raise OSError
    except OSError:
        print("ggml-rpc.cpp:566: Remote RPC server crashed or returned malformed response", file=sys.stderr, flush=True)
        os.abort()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if time.time() < ready:
            self.answer(503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
        elif self.path == "/health":
            self.answer(200, '{"status":"ok"}')
        elif self.path == "/metrics" and args.metrics:
            self.answer(200, f"llamacpp:prompt_tokens_total 5\nllamacpp:tokens_predicted_total {tokens}\nllamacpp:n_decode_total {tokens}\n"
                        "llamacpp:requests_processing 0\n", "text/plain")
        else:
            self.answer(404, "{}")

    def do_POST(self):
        global tokens
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        ask()
        tokens += wanted
        self.answer(200, json.dumps({"choices": [{"text": "from " + socket.gethostname()}], "usage": {"completion_tokens": wanted}}))


http.server.ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
