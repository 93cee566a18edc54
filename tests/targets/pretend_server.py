"""Stands in for `headrace`: `pretend_server.py serve HOW ...` starts, stalls or falls as HOW says."""

import signal
import subprocess
import sys
import time

how = sys.argv[2]
print("arguments:", " ".join(sys.argv[1:]), flush=True)
if how == "falls":
    print("headrace: needs 12500 KV blocks; this engine has 4096", file=sys.stderr)
    print("  try: shorten the prompt", file=sys.stderr)
    sys.exit(2)
if how == "crashes":
    raise MemoryError("no room for the model")
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "parent":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child:", child.pid, flush=True)
if how != "stalls":
    print(f"serving {how} at http://127.0.0.1:4711", flush=True)
time.sleep(600)
