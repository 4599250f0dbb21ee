"""A stand-in for an inference server: it serves no model. It has the routes and the metrics
of vLLM that sparkrun looks at, and does by its clock what POST /mode?NAME says: idle, work
(tokens come), prefill (a prompt is read in, and no token comes), wedge (a request runs, and
nothing moves), sick (its health does not answer). Ranks other than 0 only wait."""

import http.server
import os
import sys
import threading
import time

PORT = int(sys.argv[1])
HOST = sys.argv[2] if len(sys.argv) > 2 else ""
state = {"mode": sys.argv[3] if len(sys.argv) > 3 else "idle"}


class Server(http.server.BaseHTTPRequestHandler):
    def answer(self, code, text):
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        path, _, mode = self.path.partition("?")
        if path == "/mode":
            state["mode"] = mode
            self.answer(200, mode)
        elif path == "/v1/completions":
            self.answer(200, '{"choices": [{"text": "1"}]}')
        else:
            self.answer(404, "")

    def do_GET(self):
        mode = state["mode"]
        if self.path == "/health":
            if mode == "sick":
                time.sleep(30)
            self.answer(200, "")
        elif self.path == "/v1/models":
            self.answer(200, '{"data": [{"id": "stand-in"}]}')
        elif self.path == "/metrics":
            running = 0 if mode in ("idle", "sick") else 1
            tokens = 10 * time.monotonic() if mode == "work" else 1000
            prompt = 100 * time.monotonic() if mode == "prefill" else 5000
            self.answer(200, "\n".join((
                "# TYPE vllm:num_requests_running gauge",
                'vllm:num_requests_running{engine="0",model_name="stand-in"} %f' % running,
                'vllm:generation_tokens_total{engine="0",model_name="stand-in"} %f' % tokens,
                'vllm:prompt_tokens_total{engine="0",model_name="stand-in"} %f' % prompt, "")))
        else:
            self.answer(404, "")

    def log_message(self, *_):
        pass


if os.environ.get("RANK", "0") != "0":
    threading.Event().wait()
http.server.ThreadingHTTPServer((HOST, PORT), Server).serve_forever()
