"""The engine's process, from outside: start it, end it, know how it ended.

A recipe, made in `cli` and called in the new process, builds the engine and its executor,
so `net` knows neither models nor what computes them. The process ignores SIGINT and
SIGTERM: a terminal's Ctrl-C and a service manager's stop reach it too, and ending is the
HTTP process's decision (it may be draining). It ends by itself when its socket closes.
"""

import atexit
import contextlib
import multiprocessing
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess

from headrace.core.errors import EngineDied, HeadraceError
from headrace.core.ports import Executor
from headrace.engine.engine import Engine
from headrace.net.engine_loop import Channel, EngineLoop
from headrace.net.messages import Budget, Problem, Ready, Stopped


@dataclass(frozen=True, slots=True)
class Built:
    """What a recipe makes, inside the engine's process."""

    engine: Engine
    executor: Executor
    budget: Budget


Recipe = Callable[[], Built]
"""Picklable: a function or a frozen dataclass with `__call__`, importable by name."""


def start_engine_process(recipe: Recipe) -> tuple[SpawnProcess, socket.socket]:
    """The running process and our end of the socket to it."""
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(
        target=_engine_main, args=(theirs, recipe), name="headrace-engine", daemon=True
    )
    # Born with the signals blocked, so that a Ctrl-C during its imports leaves no traceback. The tracker
    # is started first because starting it unblocks them.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
    # At exit, multiprocessing sends SIGTERM, which is ignored, and would then wait for ever.
    atexit.register(process.kill)
    return process, ours


def release(process: SpawnProcess) -> None:
    """Give back what an ended process still holds: two file descriptors, for every engine there has been."""
    atexit.unregister(process.kill)
    process.close()


def how_it_ended(process: SpawnProcess) -> str:
    """For people: the signal or exit code of a process that is gone."""
    code = process.exitcode
    if code is None:
        return "it closed its connection but still runs"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _engine_main(connection: socket.socket, recipe: Recipe) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    channel = Channel(connection)
    try:
        _serve_until_told(recipe, channel)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the HTTP process is gone: nobody to tell
    except HeadraceError as error:
        _report(channel, error)
    except Exception as error:  # noqa: BLE001 - whatever ends the engine must reach the people waiting for it
        traceback.print_exc()
        _report(channel, EngineDied(f"{type(error).__name__}: {error}"))


def _serve_until_told(recipe: Recipe, channel: Channel) -> None:
    built = recipe()
    channel.send(Ready(built.engine.settings, built.budget))
    EngineLoop(built.engine, built.executor, channel).run()


def _report(channel: Channel, error: HeadraceError) -> None:
    with contextlib.suppress(OSError):  # nobody to tell
        channel.send(Stopped(Problem.of(error)))
    sys.exit(1)
