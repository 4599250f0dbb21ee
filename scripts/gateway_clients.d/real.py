"""Real clients against the gateway at argv[1], which has the model argv[2] by a real engine, argv[3]: vllm or
llamacpp. argv[4] is the engine's own address, whose metrics show what it is at."""

import json
import re
import sys
import time
import urllib.request

import aiohttp
import anthropic
import litellm
import openai
from cases import case, end, raises, user

gateway, model, engine, own = sys.argv[1:]
vllm = engine == "vllm"
SHORT = {"max_tokens": 8}  # the model's words make no sense, and would not end
ON = {"extra_body": {"ignore_eos": True}}
LONG = 3000

oa = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0, timeout=120)
an = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0, timeout=120)
litellm.suppress_debug_info = True
lite = {"api_base": gateway + "/v1", "api_key": "none", "num_retries": 0, "timeout": 120}
sunny = {
    "type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"], "additionalProperties": False,
}  # fmt: skip
tools = [{"type": "function", "function": {"name": "weather", "parameters": sunny, "strict": True}}]
an_tools = [{"name": "weather", "input_schema": sunny, "strict": True}]
WORK = "vllm:num_requests_running" if vllm else "llamacpp:requests_processing"


def under_way():
    text = urllib.request.urlopen(own + "/metrics", timeout=30).read().decode()
    return sum(float(n) for n in re.findall(rf"^{WORK}(?:{{.*}})? ([0-9.e+]+)$", text, re.M))


# llama.cpp looks whether a client has gone once it has said nothing to anybody for a second, metrics included.
LOOKS = 0.1 if vllm else 2.5


def await_work(want):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if under_way() == want:
            return
        time.sleep(LOOKS)
    raise AssertionError(f"the engine is at {under_way()} requests, not {want}")


@case
def openai_models():
    ids = {m.id for m in oa.models.list()}
    assert model in ids, ids
    assert oa.models.retrieve(model).id == model


@case
def openai_chat():
    r = oa.chat.completions.create(model=model, messages=user("hi"), **SHORT, **ON)
    assert r.usage.completion_tokens == 8 and r.choices[0].message.content and r.model == model, r


@case
def openai_stream():
    chunks = list(
        oa.chat.completions.create(
            model=model, messages=user("hi"), stream=True, stream_options={"include_usage": True}, **SHORT, **ON
        )
    )
    assert chunks[-1].usage.completion_tokens == 8, chunks[-1]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length", chunks
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


@case
def openai_completion():
    r = oa.completions.create(model=model, prompt="Once", **SHORT, **ON)
    assert r.usage.completion_tokens == 8 and r.choices[0].text, r


@case
def openai_schema():
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": sunny, "strict": True}}
    r = oa.chat.completions.create(model=model, messages=user("hi"), response_format=form, max_tokens=400)
    assert set(json.loads(r.choices[0].message.content)) == {"sunny"}, r


def called(text):
    """Whether it is a call that follows the schema. llama.cpp lets a model begin with words, and this one has no end."""
    return set(json.loads(text)) == {"sunny"}


@case
def openai_tools():
    r = oa.chat.completions.create(
        model=model, messages=user("hi"), tools=tools, tool_choice="required", max_tokens=400
    )
    if not vllm and not r.choices[0].message.tool_calls:
        return
    call = r.choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and called(call.function.arguments), r
    more = user("hi") + [
        r.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    r = oa.chat.completions.create(model=model, messages=more, tools=tools, **SHORT)
    assert r.usage.completion_tokens, r


@case
def openai_tools_stream():
    if not vllm:
        return
    with oa.chat.completions.stream(
        model=model, messages=user("hi"), tools=tools, tool_choice="required", max_tokens=400
    ) as s:
        s.until_done()
        call = s.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and called(call.function.arguments), call


@case
def openai_prompt_too_long():
    for stream in (False, True):
        e = raises(
            openai.BadRequestError,
            lambda stream=stream: oa.chat.completions.create(model=model, messages=user("x" * 200_000), stream=stream),
        )
        assert "context" in str(e), e


@case
def openai_refused():
    raises(
        openai.BadRequestError,
        lambda: oa.chat.completions.create(model=model, messages=user("hi"), response_format={"type": "none"}),
        "response_format",
    )


@case
def openai_cancel():
    await_work(0)
    s = oa.chat.completions.create(model=model, messages=user("hi"), stream=True, max_tokens=LONG, **ON)
    next(iter(s))
    await_work(1)
    s.close()
    await_work(0)


@case
def openai_cancel_without_stream():
    impatient = oa.with_options(timeout=1)
    raises(
        openai.APITimeoutError,
        lambda: impatient.chat.completions.create(model=model, messages=user("hi"), max_tokens=LONG, **ON),
    )
    await_work(0)


@case
async def openai_async_cancel():
    async with openai.AsyncOpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0) as c:
        s = await c.chat.completions.create(model=model, messages=user("hi"), stream=True, max_tokens=LONG, **ON)
        async for _ in s:
            break
        await_work(1)
        await s.close()
    await_work(0)


def told(word, f):
    """A request for what a model of this kind cannot do is refused with words: the gateway's, or the engine's."""
    assert raises(openai.APIStatusError, f, word).status_code in (404, 501)


@case
def openai_embeddings():
    told("embeddings", lambda: oa.embeddings.create(model=model, input="x", encoding_format="float"))


@case
def openai_transcription():
    told("/v1/audio/transcriptions" if vllm else "audio", lambda: oa.audio.transcriptions.create(model=model, file=("a.wav", b"x" * 50_000)))


@case
def openai_speech():
    told("/v1/audio/speech", lambda: oa.audio.speech.create(model=model, voice="alloy", input="x"))


@case
def openai_responses():
    r = oa.responses.create(model=model, input="hi", max_output_tokens=8)
    assert r.usage.output_tokens, r


@case
def openai_responses_stream():
    kinds = [
        e.type for e in oa.responses.create(model=model, input="hi", stream=True, max_output_tokens=16, extra_body={"ignore_eos": True})
    ]  # fmt: skip
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert "response.output_text.delta" in kinds, kinds


@case
def openai_previous_response():
    if not vllm:  # llama.cpp keeps none
        on = {"input": "on", "previous_response_id": "resp_none"}
        raises(openai.BadRequestError, lambda: oa.responses.create(model=model, **on), "previous_response_id")
        return
    r = oa.responses.create(model=model, input="hi", max_output_tokens=8)
    after = oa.responses.create(model=model, input="on", previous_response_id=r.id, max_output_tokens=8)
    assert after.usage.input_tokens > r.usage.input_tokens + len("on"), (r.usage, after.usage)
    assert oa.responses.retrieve(r.id).id == r.id
    raises(openai.NotFoundError, lambda: oa.responses.retrieve("resp_none"), "resp_none")
    raises(
        openai.NotFoundError,
        lambda: oa.responses.create(model=model, input="on", previous_response_id="resp_none"),
        "resp_none",
    )


@case
def openai_adapter():
    if not vllm:
        return
    assert "tuned" in {m.id for m in oa.models.list()}
    r = oa.chat.completions.create(model="tuned", messages=user("hi"), **SHORT, **ON)
    assert r.model == "tuned", r


@case
def anthropic_message():
    r = an.messages.create(model=model, messages=user("hi"), **SHORT)
    assert r.content[0].type == "text" and r.usage.output_tokens, r


@case
def anthropic_stream():
    with an.messages.stream(model=model, messages=user("hi"), max_tokens=40) as s:
        text = "".join(s.text_stream)
        r = s.get_final_message()
    assert text and r.usage.output_tokens and r.stop_reason, (text, r)


@case
def anthropic_tools():
    r = an.messages.create(
        model=model, messages=user("hi"), tools=an_tools, tool_choice={"type": "any"}, max_tokens=400
    )
    assert not vllm or {b.name for b in r.content if b.type == "tool_use"} == {"weather"}, r


@case
def anthropic_tools_stream():
    with an.messages.stream(
        model=model, messages=user("hi"), tools=an_tools, tool_choice={"type": "any"}, max_tokens=400
    ) as s:
        r = s.get_final_message()
    assert not vllm or {b.name for b in r.content if b.type == "tool_use"} == {"weather"}, r


@case
def anthropic_count_tokens():
    short = an.messages.count_tokens(model=model, messages=user("hi")).input_tokens
    assert an.messages.count_tokens(model=model, messages=user("hi" + "x" * 100)).input_tokens == short + 100


@case
def anthropic_prompt_too_long():
    raises(anthropic.BadRequestError, lambda: an.messages.create(model=model, messages=user("x" * 200_000), **SHORT), "context")


@case
def anthropic_cancel():
    with an.messages.stream(model=model, messages=user("hi"), max_tokens=LONG) as s:
        next(iter(s.text_stream))
    await_work(0)


@case
def litellm_chat():
    r = litellm.completion(model="openai/" + model, messages=user("hi"), **SHORT, **lite)
    assert r.usage.completion_tokens, r


@case
def litellm_stream():
    chunks = list(litellm.completion(model="openai/" + model, messages=user("hi"), stream=True, **SHORT, **ON, **lite))
    assert "".join(c.choices[0].delta.content or "" for c in chunks), chunks


@case
def litellm_tools():
    r = litellm.completion(
        model="openai/" + model, messages=user("hi"), tools=tools, tool_choice="required", max_tokens=400, **lite
    )
    assert not vllm or r.choices[0].message.tool_calls[0].function.name == "weather", r


@case
def litellm_anthropic():
    r = litellm.completion(
        model="anthropic/" + model, messages=user("hi"), api_base=gateway, api_key="none", timeout=120, **SHORT
    )
    assert r.usage.completion_tokens, r


@case
def litellm_prompt_too_long():
    raises(
        litellm.BadRequestError,
        lambda: litellm.completion(model="openai/" + model, messages=user("x" * 200_000), **lite),
        "context",
    )


@case
async def aiohttp_as_open_webui():
    """Lists within 10 s, then reads a stream by its lines: open_webui/routers/openai.py of 0.12.4."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10), trust_env=True) as s:
        async with s.get(gateway + "/v1/models", headers={"Authorization": "Bearer none"}) as r:
            data = (await r.json())["data"]
            assert model in {m.get("id") for m in data}, data
    body = {"model": model, "messages": user("hi"), "stream": True, "stream_options": {"include_usage": True}, **SHORT}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), trust_env=True) as s:
        async with s.post(gateway + "/v1/chat/completions", data=json.dumps(body), headers={"Content-Type": "application/json"}) as r:
            assert "text/event-stream" in r.headers["Content-Type"], r.headers
            lines = [line async for line in r.content if line.strip()]
    assert all(line.startswith(b"data:") for line in lines) and lines[-1].strip() == b"data: [DONE]", lines
    assert any("usage" in json.loads(line[5:]) for line in lines[:-1]), lines


end()
