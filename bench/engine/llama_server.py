"""llama.cpp's own server, for `bench.engine`: runs in the environment that `make llama` builds.

    python llama_server.py MODEL.gguf --threads 2 --parallel 32 --context 98304
      -> prints "serving at http://127.0.0.1:PORT" once it answers; SIGTERM ends it

Its defaults but for these: the threads; slots for as many requests as come at once, each with
a share of the context; no fitting of these to the free memory; and no copies of finished prompts kept in
memory, for no prompt comes twice here and making them takes time.
"""

import argparse
import signal

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens, divided among the slots")
    options = parser.parse_args()
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)  # before its threads start, which inherit it
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_parallel, params.n_ctx = options.parallel, options.context
    params.fit_params = False
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    server = xllamacpp.Server(params)
    print(xllamacpp.get_system_info(), flush=True)
    print(f"serving at {server.listening_address}", flush=True)
    signal.sigwait(stops)


if __name__ == "__main__":
    main()
