"""The engine of the model argv[2] dies under what clients ask of the gateway at argv[1]. Once all is under way the file
argv[3] is there; each client is told then that its answer is not complete. Who asks after that waits until the engine
has started anew."""

import concurrent.futures
import sys
import threading

import anthropic
import litellm
import openai
from cases import case, end, user

gateway, model, under_way = sys.argv[1:]
oa = openai.OpenAI(base_url=gateway + "/v1", api_key="none", max_retries=0, timeout=540)
an = anthropic.Anthropic(base_url=gateway, api_key="none", max_retries=0, timeout=540)
litellm.suppress_debug_info = True
lite = {"api_base": gateway + "/v1", "api_key": "none", "num_retries": 0, "timeout": 540}
ON = {"extra_body": {"ignore_eos": True}}
LONG = 3900


def chat(**more):
    return oa.chat.completions.create(model=model, messages=user("hi"), **more)


others = threading.Event()  # the others were told


def anthropic_stream():
    """One after another: none can be told to go on to its end."""
    while not others.is_set():
        with an.messages.stream(model=model, messages=user("hi"), max_tokens=LONG) as s:
            yield from s.text_stream


def chat_plain():
    yield "asked"
    yield chat(max_tokens=LONG, **ON)


begun = threading.Barrier(6)
asked = {
    "openai_stream": lambda: chat(stream=True, max_tokens=LONG, **ON),
    "openai_plain": chat_plain,
    "openai_responses_stream": lambda: oa.responses.create(
        model=model, input="hi", stream=True, max_output_tokens=LONG, **ON
    ),
    "anthropic_stream": anthropic_stream,
    "litellm_stream": lambda: litellm.completion(
        model="openai/" + model, messages=user("hi"), stream=True, max_tokens=LONG, **ON, **lite
    ),
}


def broken(f):
    """What a client raises after its first piece; None: it took its answer for complete."""
    pieces = iter(f())
    next(pieces)
    begun.wait(60)
    try:
        for _ in pieces:
            pass
    except Exception as e:
        return e


with concurrent.futures.ThreadPoolExecutor() as pool:
    told = {name: pool.submit(broken, f) for name, f in asked.items()}
    begun.wait(60)
    open(under_way, "w").close()
    concurrent.futures.wait([f for name, f in told.items() if name != "anthropic_stream"], 120)
    others.set()
    for name, future in told.items():

        def is_told(future=future):
            e = future.result(120)
            assert e is not None, "it took a broken answer for complete"
            print(f"     {type(e).__name__}: {str(e)[:300]}")

        is_told.__name__ = name + "_is_told"
        case(is_told)

    @case
    def all_wait_for_its_next_start():
        text = [
            pool.submit(lambda: chat(max_tokens=8, **ON).choices[0].message.content),
            pool.submit(lambda: "".join(c.choices[0].delta.content or "" for c in chat(max_tokens=8, stream=True, **ON))),
            pool.submit(
                lambda: an.messages.create(model=model, messages=user("hi"), max_tokens=8, stream=True).__next__().type
            ),
        ]
        assert all(t.result() for t in text), text


end()
