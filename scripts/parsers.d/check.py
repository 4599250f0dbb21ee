"""Gives the command lines of workloads/testdata/serve-*.golden to a server's own parser, of
the version that this Python has. Usage: check.py vllm|sglang GOLDEN..."""

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import re
import sys
import unittest.mock


def commands(path):
    """The argv of each rank of a golden."""
    for line in open(path, encoding="utf-8"):
        m = re.match(r"rank \d+, stage \S+: \[(.*)\]$", line)
        if m:
            yield json.loads("[" + re.sub(r'" "', '", "', m[1]) + "]")


def vllm(argv):
    if "serve" not in argv:  # Ray's
        return None
    # As vllm/entrypoints/cli/main.py does it.
    from vllm.entrypoints.cli import serve

    parser = serve.FlexibleArgumentParser()
    command = serve.ServeSubcommand()
    command.subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(argv[argv.index("serve") :])
    command.validate(args)
    return {k: getattr(args, k) for k in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "nnodes", "node_rank", "master_addr", "headless", "host", "port", "distributed_executor_backend")}


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for what SGLang itself imports beside its parser and is not installed here:
    kernels, most of all. No module of SGLang's own is among it."""

    def find_spec(self, name, path=None, target=None):
        by = sys._getframe(1)
        while by and "importlib" in by.f_code.co_filename:
            by = by.f_back
        if name.startswith("sglang.") or not by or not by.f_globals.get("__name__", "").startswith("sglang"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = unittest.mock.MagicMock(name=spec.name)
        module.__version__ = "0"
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def sglang(argv):
    if "sglang.launch_server" not in argv:
        return None
    import argparse

    if not any(isinstance(f, Missing) for f in sys.meta_path):
        sys.meta_path.append(Missing())

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args(argv[argv.index("sglang.launch_server") + 1 :])
    return {k: getattr(args, k, None) for k in ("tp_size", "tensor_parallel_size", "pp_size", "nnodes", "node_rank", "dist_init_addr", "host", "port")}


def main():
    server, parse, seen = sys.argv[1], {"vllm": vllm, "sglang": sglang}[sys.argv[1]], 0
    for path in sys.argv[2:]:
        for argv in commands(path):
            told = parse(argv)
            if told is not None:
                seen += 1
                print(path.rsplit("/", 1)[-1], {k: v for k, v in told.items() if v is not None})
    if not seen:
        sys.exit(f"no command of {server} in {sys.argv[2:]}")
    for name in (server, server + "-cpu"):
        try:
            print(f"{seen} command lines are accepted by {name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass


main()
