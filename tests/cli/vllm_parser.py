"""Run by vLLM's own Python: what its parser of `vllm serve` knows, and how it reads command lines.

command lines, a JSON list on stdin -> {"flags": [...], "read": [{name: value}, or null where refused]}
"""

import contextlib
import io
import json
import sys
from argparse import Namespace

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str | list) else repr(value)


def read(parser: FlexibleArgumentParser, args: list[str]) -> dict[str, object] | None:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            said: Namespace = parser.parse_args(args)
    except (SystemExit, ValueError):
        return None
    return {name: plain(value) for name, value in vars(said).items()}


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser())
    flags = [
        {"names": action.option_strings, "default": plain(action.default)}
        for action in parser._actions
        if action.option_strings
    ]
    lines = [read(parser, args) for args in json.load(sys.stdin)]
    json.dump({"flags": flags, "read": lines}, sys.__stdout__)


if __name__ == "__main__":
    main()
