"""What both sets of cases share: a case runs where it stands, and is counted."""

import asyncio
import sys
import time

passed = failed = 0


def case(f):
    """Runs it at once, and counts."""
    global passed, failed
    began = time.monotonic()
    try:
        asyncio.run(f()) if asyncio.iscoroutinefunction(f) else f()
    except Exception as e:
        failed += 1
        print(f"FAIL {f.__name__}: {type(e).__name__}: {e}", flush=True)
    else:
        passed += 1
        print(f"ok   {f.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
    return f


def raises(kind, f, *words):
    try:
        f()
    except kind as e:
        for word in words:
            assert word in str(e), f"{e} lacks {word}"
        return e
    raise AssertionError(f"no {kind.__name__}")


def user(text):
    return [{"role": "user", "content": text}]


def end():
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
