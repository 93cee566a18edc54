"""Stands in for `headrace` and for `vllm`: starts, stalls or falls, as HOW says.

pretend_server.py serve HOW ... --port 0        as headrace: says the address it serves at
pretend_server.py serve ... --how HOW ...       as vLLM: says that it has started
"""

import os
import signal
import subprocess
import sys
import time

as_vllm = "--how" in sys.argv
how = sys.argv[sys.argv.index("--how") + 1] if as_vllm else sys.argv[2]
print("arguments:", " ".join(sys.argv[1:]), flush=True)
if how == "falls" and as_vllm:
    place = "(APIServer pid=1) "
    print(f"{place}pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig")
    print(
        f"{place}  Value error, needs 12500 KV blocks; this engine has 4096 [type=value_error, input_value=1]"
    )
    print(f"{place}    For further information visit a page", flush=True)
    sys.exit(1)
if how == "falls":
    print("headrace: needs 12500 KV blocks; this engine has 4096", file=sys.stderr)
    print("  try: shorten the prompt", file=sys.stderr)
    sys.exit(2)
if how == "crashes":
    raise MemoryError("no room for the model")
if how in {"struck", "leaves"}:
    print("loading the model", flush=True)
    if how == "struck":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)
if how.startswith("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how in {"parent", "stubborn-parent"}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child:", child.pid, flush=True)
if how != "stalls" and as_vllm:
    print("INFO:     Application startup complete.", flush=True)
elif how != "stalls":
    print(f"serving {how} at http://127.0.0.1:4711", flush=True)
time.sleep(600)
