"""One rank of a module's main(): each.py MODULE [raise|kill] [-TEST...].

Each test function that main() calls is noted in RANK.rank, a line "pass|fail|skip NAME"; -TEST is
skipped. By "raise" or "kill" the last rank breaks in the first attempt, between two tests, and only the second attempt
is noted: by the file "broken", as torchrun counts no attempt on a host whose own ranks did not fail.
"""

import functools
import importlib
import os
import signal
import sys

rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
words = sys.argv[2:]
skipped = [word[1:] for word in words if word[0] == "-"]
broken = next((word for word in words if word[0] != "-"), None) if not os.path.exists("broken") else None
module = importlib.import_module(sys.argv[1])
if "ACCELERATE_USE_CPU" in os.environ:  # test_ops asks for no processor, and would be in a world of one
    importlib.import_module("accelerate").PartialState(cpu=True)
notes = open(os.devnull if broken else f"{rank}.rank", "w", buffering=1)
calls = {}
inside = False


def noted(test):
    @functools.wraps(test)
    def call(*args, **kwargs):
        global inside
        if inside:
            return test(*args, **kwargs)
        name = test.__name__
        calls[name] = calls.get(name, 0) + 1
        if calls[name] > 1:
            name = f"{name}.{calls[name]}"
        if broken and rank == last and len(calls) == 2:
            open("broken", "x").close()
            if broken == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("this rank breaks once")
        if test.__name__ in skipped:
            print("skip", name, file=notes)
            return None
        inside, verdict = True, "fail"
        try:
            result = test(*args, **kwargs)
            verdict = "pass"
            return result
        finally:
            inside = False
            print(verdict, name, file=notes)

    return call


for name, value in list(vars(module).items()):
    if callable(value) and (name.startswith(("test_", "check_")) or name.endswith("_check")):
        setattr(module, name, noted(value))
module.main()
if not calls:
    raise SystemExit(f"{sys.argv[1]}: main() called no test")
if broken:
    raise SystemExit("no rank broke")
