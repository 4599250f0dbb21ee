"""What people put before the gateway, started here and asked: LiteLLM's proxy and Open WebUI. Arguments: the gateway,
a model, a folder for their files, LiteLLM's program and Open WebUI's."""

import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request

import openai
from cases import case, end, raises, user

gateway, model, folder, litellm, open_webui = sys.argv[1:]
os.chdir(folder)
with open("litellm.json", "w", encoding="utf-8") as f:  # JSON is YAML
    params = {"model": "openai/" + model, "api_base": gateway + "/v1", "api_key": "none"}
    json.dump({"model_list": [{"model_name": "tiny", "litellm_params": params}]}, f)
OWN = {
    "DATA_DIR": folder, "WEBUI_AUTH": "False", "WEBUI_SECRET_KEY": "x", "OFFLINE_MODE": "True", "ENABLE_OLLAMA_API": "False",
    "RAG_EMBEDDING_ENGINE": "openai", "OPENAI_API_BASE_URL": gateway + "/v1", "OPENAI_API_KEY": "none",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_MASTER_KEY": "sk-" + secrets.token_hex(32),
}  # fmt: skip
LITELLM, WEBUI = 4000, 8090
running = []


def begin(name, port, path, *command):
    with open(name + ".log", "w", encoding="utf-8") as log:
        running.append(subprocess.Popen(command, env=os.environ | OWN, stdout=log, stderr=log))
    while running[-1].poll() is None:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()
        except OSError:
            time.sleep(1)
    with open(name + ".log", encoding="utf-8") as log:
        raise RuntimeError(f"{name} has ended: {log.read()[-2000:]}")


def webui(path, body=None):
    """What Open WebUI answers, and with what status."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + token}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{WEBUI}{path}", data, headers), timeout=120
        ) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


token = ""
try:
    begin("litellm", LITELLM, "/health/liveliness", litellm, "--config", "litellm.json", "--port", str(LITELLM))
    lite = openai.OpenAI(base_url=f"http://127.0.0.1:{LITELLM}/v1", api_key=OWN["LITELLM_MASTER_KEY"], max_retries=0, timeout=120)

    @case
    def litellm_proxy_chat():
        r = lite.chat.completions.create(model="tiny", messages=user("hi"), max_tokens=8)
        assert r.usage.completion_tokens, r

    @case
    def litellm_proxy_stream():
        chunks = list(lite.chat.completions.create(model="tiny", messages=user("hi"), stream=True, max_tokens=8))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks

    @case
    def litellm_proxy_prompt_too_long():
        raises(
            openai.BadRequestError,
            lambda: lite.chat.completions.create(model="tiny", messages=user("x" * 200_000)),
            "context",
        )

    begin("open-webui", WEBUI, "/health", open_webui, "serve", "--host", "127.0.0.1", "--port", str(WEBUI))
    token = json.loads(webui("/api/v1/auths/signin", {"email": "", "password": ""})[1])["token"]

    @case
    def open_webui_models():
        status, text = webui("/api/models")
        found = [m for m in json.loads(text)["data"] if m["id"] == model]
        assert status == 200 and found and found[0]["name"] == model, text

    @case
    def open_webui_stream():
        body = {"model": model, "messages": user("hi"), "stream": True, "max_tokens": 8}
        status, text = webui("/api/chat/completions", body)
        events = [json.loads(e[5:]) for e in text.split("\n") if e.startswith("data:") and "[DONE]" not in e]
        said = "".join(c["delta"].get("content") or "" for e in events for c in e.get("choices", []))
        assert status == 200 and said and "data: [DONE]" in text, text

    @case
    def open_webui_chat():
        status, text = webui(
            "/api/chat/completions", {"model": model, "messages": user("hi"), "stream": False, "max_tokens": 8}
        )
        assert status == 200 and json.loads(text)["usage"]["completion_tokens"], text

    @case
    def open_webui_prompt_too_long():
        status, text = webui("/api/chat/completions", {"model": model, "messages": user("x" * 200_000), "stream": True})
        assert status == 400 and "context" in text, (status, text)

    @case
    def open_webui_embeddings():
        status, text = webui("/api/embeddings", {"model": model, "input": "x"})
        assert status in (404, 501) and "embeddings" in text, (status, text)

finally:
    for p in running:
        p.terminate()
    for p in running:
        p.wait()
end()
