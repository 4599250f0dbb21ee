"""Real clients against the gateway at argv[1]; the engine behind it is at argv[2]."""

import concurrent.futures
import sys
import time
import urllib.request

import anthropic
import litellm
import openai
from cases import case, end, raises, user

gateway, engine = sys.argv[1], sys.argv[2]


def cancelled():
    return int(urllib.request.urlopen(engine + "/cancelled").read())


def await_cancel(before):
    for _ in range(50):
        if cancelled() > before:
            return
        time.sleep(0.1)
    raise AssertionError("the engine works on")


oa = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0)
an = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0)
litellm.suppress_debug_info = True
lite = {"api_base": gateway + "/v1", "api_key": "none", "num_retries": 0}
tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


@case
def all_wait_for_a_model_that_starts():
    """Each gets comments before its stream, which none may take for a part of it."""

    def with_openai():
        chunks = oa.chat.completions.create(model="comes", messages=user("hi"), stream=True)
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

    def with_anthropic():
        with an.messages.stream(model="comes", max_tokens=9, messages=user("hi")) as s:
            return "".join(s.text_stream)

    def with_litellm():
        chunks = litellm.completion(model="openai/comes", messages=user("hi"), stream=True, **lite)
        return "".join(c.choices[0].delta.content or "" for c in chunks)

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for text in pool.map(lambda f: f(), (with_openai, with_anthropic, with_litellm)):
            assert text == "t0 t1 t2 t3 t4 ", text
    assert time.monotonic() - began > 5  # so that comments came before


@case
def openai_models():
    ids = {m.id for m in oa.models.list()}
    assert ids == {"m", "comes", "gone", "gpt-4"}, ids
    assert oa.models.retrieve("gpt-4").root == "m"


@case
def openai_chat():
    r = oa.chat.completions.create(model="m", messages=user("hi"))
    assert r.choices[0].message.content == "hello" and r.usage.completion_tokens == 5, r


@case
def openai_alias():
    assert oa.chat.completions.create(model="gpt-4", messages=user("hi")).model == "m"


@case
def openai_stream():
    chunks = list(oa.chat.completions.create(model="m", messages=user("hi"), stream=True))
    assert chunks[-1].usage.total_tokens == 8, chunks[-1]


@case
def openai_tools():
    r = oa.chat.completions.create(model="m", messages=user("tool"), tools=tools)
    assert r.choices[0].message.tool_calls[0].function.name == "weather", r


@case
def openai_tools_stream():
    with oa.chat.completions.stream(model="m", messages=user("tool"), tools=tools) as s:
        s.until_done()
        call = s.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.name == "weather" and call.function.arguments == "1234", call


@case
def openai_long_prompt():
    r = oa.chat.completions.create(model="gpt-4", messages=user("x" * 3_000_000))
    assert r.choices[0].message.content == "hello", r


@case
def openai_cancel():
    before = cancelled()
    s = oa.chat.completions.create(model="m", messages=user("long"), stream=True)
    next(iter(s))
    s.close()
    await_cancel(before)


@case
async def openai_async_cancel():
    before = cancelled()
    async with openai.AsyncOpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0) as c:
        s = await c.chat.completions.create(model="m", messages=user("long"), stream=True)
        async for _ in s:
            break
        await s.close()
    await_cancel(before)


@case
def openai_unknown_model():
    e = raises(
        openai.NotFoundError, lambda: oa.chat.completions.create(model="mm", messages=user("hi")), "did you mean m"
    )
    assert e.code == "model_not_found", e.code


@case
def openai_engine_refuses():
    raises(
        openai.BadRequestError,
        lambda: oa.chat.completions.create(model="m", messages=user("refuse")),
        "the engine refuses this",
    )


@case
def openai_engine_dies():
    got = []

    def run():
        for c in oa.chat.completions.create(model="m", messages=user("die"), stream=True):
            got.append(c)

    raises(openai.APIError, run, "broke off")
    assert len(got) == 4, got


@case
def openai_nothing_at_the_engine():
    began = time.monotonic()
    raises(
        openai.InternalServerError,
        lambda: oa.chat.completions.create(model="gone", messages=user("hi")),
        "cannot be reached",
    )
    assert time.monotonic() - began < 40


@case
def openai_embeddings():
    r = oa.embeddings.create(model="m", input="x", encoding_format="float")
    assert r.data[0].embedding == [0.5, 1], r


@case
def openai_responses():
    r = oa.responses.create(model="m", input="x")
    assert r.id == "resp_1" and r.output_text == "after ", r
    assert oa.responses.create(model="m", input="x", previous_response_id=r.id).output_text == "after resp_1"


@case
def openai_transcription():
    r = oa.audio.transcriptions.create(model="gpt-4", file=("a.wav", b"x" * 2_000_000))
    assert r.text == "heard for m", r


@case
def anthropic_message():
    r = an.messages.create(model="m", max_tokens=9, messages=user("hi"))
    assert r.content[0].text == "hello" and r.usage.output_tokens == 5, r


@case
def anthropic_stream():
    with an.messages.stream(model="gpt-4", max_tokens=9, messages=user("hi")) as s:
        assert "".join(s.text_stream) == "t0 t1 t2 t3 t4 "
        assert s.get_final_message().model == "m"


@case
def anthropic_count_tokens():
    assert an.messages.count_tokens(model="m", messages=user("hi")).input_tokens == 7


@case
def anthropic_models():
    assert {m.id for m in an.models.list()} == {"m", "comes", "gone", "gpt-4"}


@case
def anthropic_unknown_model():
    raises(
        anthropic.NotFoundError,
        lambda: an.messages.create(model="mm", max_tokens=9, messages=user("hi")),
        "did you mean m",
        "not_found_error",
    )


@case
def anthropic_engine_dies():
    def run():
        with an.messages.stream(model="m", max_tokens=9, messages=user("die")) as s:
            list(s.text_stream)

    raises(anthropic.APIStatusError, run, "broke off")


@case
def anthropic_cancel():
    before = cancelled()
    with an.messages.stream(model="m", max_tokens=9, messages=user("long")) as s:
        next(iter(s.text_stream))
    await_cancel(before)


@case
def litellm_chat():
    r = litellm.completion(model="openai/m", messages=user("hi"), **lite)
    assert r.choices[0].message.content == "hello", r


@case
def litellm_stream():
    chunks = litellm.completion(model="openai/gpt-4", messages=user("hi"), stream=True, **lite)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "t0 t1 t2 t3 t4 "


@case
def litellm_tools():
    r = litellm.completion(model="openai/m", messages=user("tool"), tools=tools, **lite)
    assert r.choices[0].message.tool_calls[0].function.name == "weather", r


@case
def litellm_anthropic():
    r = litellm.completion(model="anthropic/m", messages=user("hi"), api_base=gateway, api_key="none", max_tokens=9)
    assert r.choices[0].message.content == "hello", r


@case
def litellm_unknown_model():
    raises(
        litellm.NotFoundError,
        lambda: litellm.completion(model="openai/mm", messages=user("hi"), **lite),
        "did you mean m",
    )


@case
def litellm_engine_dies():
    raises(
        Exception,
        lambda: list(litellm.completion(model="openai/m", messages=user("die"), stream=True, **lite)),
        "broke off",
    )


end()
