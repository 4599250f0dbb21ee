"""One rank of a module's main(): each.py MODULE [raise|kill].

Each test function that main() calls is noted in RANK.rank, a line "pass|fail NAME". With a second word the last rank
breaks so in the first attempt, between two tests, and only the second attempt is noted: by the file "broken", as
torchrun counts no attempt on a host whose own ranks did not fail.
"""

import functools
import importlib
import os
import signal
import sys

rank, last = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) - 1
broken = sys.argv[2] if len(sys.argv) > 2 and not os.path.exists("broken") else None
module = importlib.import_module(sys.argv[1])
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
if broken:
    raise SystemExit("no rank broke")
