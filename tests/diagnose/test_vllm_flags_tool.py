"""tools/vllm_flags.py reads what releases take from their source, in the ways that they have declared it."""

import subprocess
import sys
import tomllib
from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "vllm_flags.py"
OLD = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument('--swap-space', type=int, default=4)
        parser.add_argument('--enforce-eager', action='store_true')
        parser.add_argument('--kv-cache-dtype', type=str, choices=['auto', 'fp8'], default='auto')
"""
NEW = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(CacheConfig)
        parser.add_argument("--kv-cache-dtype", **kwargs["cache_dtype"])
        parser.add_argument("--enforce-eager", **{**kwargs["eager"], "default": None})
        for arg, type in [("--first", str), ("--second", bool)]:
            parser.add_argument(arg, type=type)
"""
CONFIG = """
CacheDType = Literal["auto", "fp8", "nvfp4"]
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    eager: bool | None = None
"""
FRONT = """
class FrontendArgs:
    host: str | None = None
    allow_credentials: bool = False
    def add_cli_args(parser):
        for key, value in get_kwargs(FrontendArgs).items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)
"""
ENVS = 'environment_variables = {"VLLM_USE_V1": lambda: 1, "HOME": lambda: ""}'


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_words_come_and_go_as_the_releases_declare_them(tmp_path: Path) -> None:
    write(tmp_path / "0.9.2", {"engine/arg_utils.py": OLD, "envs.py": ENVS})
    write(
        tmp_path / "0.10.0",
        {"engine/arg_utils.py": NEW, "config/cache.py": CONFIG, "entrypoints/openai/cli_args.py": FRONT},
    )

    ran = subprocess.run([sys.executable, TOOL, tmp_path], capture_output=True, text=True, check=True)
    table = tomllib.loads(ran.stdout)

    first, second = table["release"]
    assert (first["version"], second["version"]) == ("0.9.2", "0.10.0"), "by number, not by letter"
    assert first["came"] == [
        "VLLM_USE_V1",
        "enforce-eager",
        "kv-cache-dtype",
        "kv-cache-dtype=auto",
        "kv-cache-dtype=fp8",
        "swap-space",
    ]
    assert second["went"] == ["VLLM_USE_V1", "swap-space"]
    assert second["came"] == [
        "allow-credentials",
        "first",
        "host",
        "kv-cache-dtype=nvfp4",
        "no-allow-credentials",
        "no-enforce-eager",
        "second",
    ]
    assert table["switches"] == ["allow-credentials", "enforce-eager"]
