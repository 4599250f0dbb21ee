"""A stand-in for a server of OpenAI's API: it serves no model. It answers with the name of its machine and of the model
that it was asked for; with "stream" it says a word each second, as many as "max_tokens"."""

import http.server
import json
import socket
import sys
import time

HERE = socket.gethostname()


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "%s of %s by %s" % (asked["model"], HERE, self.headers.get("Authorization", "nobody"))
        if not asked.get("stream"):
            message = {"role": "assistant", "content": text}
            self.answer(json.dumps({"model": asked["model"], "choices": [{"message": message}]}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for n in range(asked.get("max_tokens", 3)):
            chunk = {"model": asked["model"], "choices": [{"delta": {"content": "word%d " % n}}]}
            self.wfile.write(b"data: %s\n\n" % json.dumps(chunk).encode())
            self.wfile.flush()
            time.sleep(1)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(b'{"object": "list", "data": [{"id": "qwen", "object": "model"}]}')
        else:
            self.answer(b"", "text/plain")

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Server).serve_forever()
