"""The CPU as the bottleneck: the core loop, the front end, launches of kernels."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence, Reading
from headrace.diagnose.finding import Advice, Fact, Finding, Label, Severity
from headrace.diagnose.load import increase, load_of, mean_of, share
from headrace.diagnose.quantities import quantities
from headrace.diagnose.rules.support import concurrency, fact, start_failed
from headrace.diagnose.sizes import tensor_parallel

BUSY_CPU, IDLE_GPU = 0.9, 0.85


def starved_of_cpu(e: Evidence) -> Iterator[Finding]:
    """The engine's core loop, the tokenizer and the launches of kernels run on one core each: when one is
    full the card waits between steps, with KV and slots free.
    """
    cpu, gpu = _cpu(e), _gpu(e)
    load = load_of(e)
    if start_failed(e) or load.peak_kv >= 0.95 or _nobody_is_served(e):
        return
    busy = cpu is not None and cpu >= BUSY_CPU
    idle = gpu is not None and gpu < IDLE_GPU
    throttled = any((r.last or 0) > 0 for r in e.under("host:") if re.search(r"throttl|steal", r.name))
    at_work = (
        load.peak_running >= 2 or load.peak_waiting > 0 or any(e.under("workload:client")) or not load.running
    )
    few_cores = _few_cores(e)
    if not at_work or not (
        (busy and (idle or gpu is None))
        or throttled
        or few_cores
        or (busy and load.peak_waiting > 0 and idle)
    ):
        return
    yield Finding(
        Label.CPU,
        "The CPU holds the card back"
        + (f": CPU at {cpu:.0%}" if busy else "")
        + (f", GPU at {gpu:.0%}" if idle else ""),
        tuple(fact(e, r.name) for r in (*e.under("host:"), *e.under("gpu:")))[:4],
        Advice(
            "2 cores and more beside one for each GPU, none throttled; --api-server-count 2 to 4 where "
            "front-end work (tokenizing, images, JSON) fills a core; a version with async scheduling "
            "(0.14 on)",
            "shorter gaps between steps",
            "the periodic log line ends with more than one API server",
            "GPU use rises at the same load; TTFT outside queue and prefill falls",
        ),
        Severity.WARNING,
        0.8 if busy and idle else 0.6,
        rivals=(
            (
                "busy-polling workers show one full core for each GPU and are no shortage: look at the "
                "front end's"
            ),
        ),
        explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH}),
    )


def _cores(e: Evidence) -> float | None:
    names = ("cpu_cores", "cpus", "cpu", "vcpus", "vcpu", "cores", "cpu_limit", "cpu_count")
    return e.number(*(f"{prefix}:{name}" for prefix in ("hardware", "host", "workload") for name in names))


def _few_cores(e: Evidence) -> bool:
    cores = _cores(e)
    return cores is not None and cores < tensor_parallel(e) + 2


def _nobody_is_served(e: Evidence) -> bool:
    load = load_of(e)
    none = e.text("workload:requests").lower() in {"none", "no", "0"} or e.number("workload:requests") == 0
    return none or (bool(load.running) and load.peak_running == load.peak_waiting == 0 and not load.generated)


_TROUBLE = re.compile(r"time[sd]? ?-?out|\bwaits?\b|\bslow|other (?:jobs|processes)|hang|stuck")


def polls_while_idle(e: Evidence) -> Iterator[Finding]:
    """Workers wait for the next step in a loop that asks again and again: a core each, without a request."""
    cpu = _cpu(e)
    if cpu is None or cpu < BUSY_CPU or not _nobody_is_served(e) or start_failed(e) or e.of("stalled"):
        return
    if any(e.under("client:")) or _TROUBLE.search(e.told()):
        return
    yield Finding(
        Label.EXPECTED,
        f"CPU at {cpu:.0%} and no request: workers ask for the next step in a loop, a core each",
        tuple(fact(e, r.name) for r in e.under("host:"))[:2],
        Advice(
            "nothing; VLLM_SLEEP_WHEN_IDLE=1 where the power matters more than the first step after a pause",
            "cores that sleep while nobody asks",
            "a little latency of the first step",
            "CPU of each process (top -H): as many full ones as workers",
        ),
        Severity.NOTE,
        0.7,
        explains=frozenset({Label.UNDETERMINED, Label.STALL}),
    )


def _cpu(e: Evidence) -> float | None:
    found = [
        share(r.last)
        for r in e.under("host:")
        if r.last is not None and re.search(r"cpu.*(?:util|perc|pct|usage|busy|load)|core.*perc", r.name)
    ]
    return max(found, default=None)


def _gpu(e: Evidence) -> float | None:
    found = [
        share(r.numbers[-1])
        for r in e.under("gpu:")
        if r.numbers and re.search(r"util|busy|sm_|perc", r.name) and "mem" not in r.name
    ]
    return max(found, default=None)


def outside_queue_and_prefill(e: Evidence) -> Iterator[Finding]:
    """TTFT runs from arrival; queue from when the core took the request in; prefill from its first step.
    What is in neither is the front end (template, tokenizer, images) and waiting for the core to read
    its input.
    """
    stem = "headrace:" if e.engine == "headrace" else "vllm:"
    ttft = mean_of(e, f"{stem}time_to_first_token_seconds")
    queue = mean_of(e, f"{stem}request_queue_time_seconds")
    prefill = mean_of(e, f"{stem}request_prefill_time_seconds")
    begun = increase(e, f"{stem}time_to_first_token_seconds_count") or 0.0
    ended = increase(e, f"{stem}request_prefill_time_seconds_count") or 0.0
    if ttft is None or queue is None or prefill is None or ended < 0.8 * begun:
        return
    rest = ttft - queue - prefill
    # A request is read between steps, and one that waits shows in the queue's time only once it has ended.
    steps_s = STEPS_UNTIL_READ * (mean_of(e, f"{stem}inter_token_latency_seconds") or 0.0)
    if rest > max(0.2, 0.25 * ttft, steps_s) and not load_of(e).waits:
        yield Finding(
            Label.CPU,
            f"{rest:.2f} s of a mean TTFT of {ttft:.2f} s are in neither queue ({queue:.2f}) nor "
            f"prefill ({prefill:.2f})",
            tuple(
                fact(e, f"{stem}{n}_seconds_sum")
                for n in ("time_to_first_token", "request_queue_time", "request_prefill_time")
            ),
            Advice(
                "give the front end CPU: --api-server-count, cores for the pod; shorter steps "
                "(--max-num-batched-tokens lower) so that the core reads its input sooner",
                "TTFT by up to that time",
                "smaller steps read prompts a little slower",
                "the three means again",
            ),
            Severity.WARNING,
            0.65,
            rivals=("long steps: a request is taken in between steps only. Compare with ITL P99",),
        )


STEPS_UNTIL_READ = 5.0


_FRONT_END = re.compile(
    r"tokeni[sz]|detoken|preprocess|processor|image_(?:load|decode|proc)|decode_image|fetch_image|grammar|fsm|xgrammar|outlines|"
    r"compile_schema|json_schema|template|render|serializ|pickle|python|gil|event_loop|schedul\w*_(?:ms|us|s)$|launch|cpu_(?:time|ms|s)|"
    r"host_(?:ms|s|time|gap)|(?<![a-z])gc(?![a-z])|garbage|mask|logits_processor|bubble|gpu_idle|sampl\w*_ms"
)


def front_end_takes_it(e: Evidence) -> Iterator[Finding]:
    """Time that somebody measured in code of the CPU: tokenizer, images, grammars, planning, launches."""
    times = [
        r
        for r in e.readings.values()
        if r.last and _FRONT_END.search(r.name) and re.search(r"_(?:ms|us|s|seconds)\b|_ms_|_s_|perc", r.name)
    ]
    times = [r for r in times if not r.name.startswith(("startup:", "vllm:", "process_", "sweep:"))]
    large = [r for r in times if _is_large(r.name, r.last or 0.0)]
    if large and not start_failed(e):
        worst = max(large, key=lambda r: _seconds(r.name, r.last or 0.0))
        yield Finding(
            Label.CPU,
            f"{worst.name.partition(':')[2]} = {worst.last:g}: time in code of the CPU, not on the card",
            tuple(fact(e, r.name) for r in large[:3]),
            Advice(
                "processes rather than threads for front-end work (--api-server-count, "
                "--renderer-num-workers), a fast tokenizer, simpler or cached grammars, images resized "
                "by the client",
                "that part of TTFT or of each step",
                "the periodic log line ends with more than one API server",
                "the same time again, and GPU use",
            ),
            Severity.WARNING,
            0.7,
            explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED, Label.MEMORY_BANDWIDTH}),
        )


def _is_large(name: str, value: float) -> bool:
    """More than a twentieth of a second, or anything that comes with every step."""
    each_step = re.search(r"schedul|launch|mask|sampl|gap|bubble", name)
    return bool(each_step) or _seconds(name, value) >= 0.05 or ("perc" in name and share(value) > 0.3)


def _seconds(name: str, value: float) -> float:
    return value * (1e-3 if re.search(r"_ms\b|_ms_", name) else 1e-6 if re.search(r"_us\b", name) else 1.0)


_IS_GPU_USE = re.compile(r"gpu:(?!.*mem).*(?:util|busy|sm_|perc)")


def card_waits(e: Evidence) -> Iterator[Finding]:
    """A card that is half idle with many requests at hand waits for somebody: the CPU, where nothing else
    is short.
    """
    load = load_of(e)
    used = [share(r.last) for r in e.under("gpu:") if r.last is not None and _IS_GPU_USE.search(r.name)]
    gpu = min(used, default=None)
    many = max(load.peak_running, load.peak_waiting, concurrency(e) or 0.0)
    bound = 0.8 if many >= 64 else 0.6
    if (
        gpu is None
        or gpu >= bound
        or many < 8
        or load.peak_kv >= 0.9
        or start_failed(e)
        or _cpu(e) is not None
    ):
        return
    yield Finding(
        Label.CPU,
        f"The GPU is used at {gpu:.0%} with {many:,.0f} requests at hand",
        tuple(fact(e, r.name) for r in e.under("gpu:"))[:3],
        Advice(
            "look at the CPU use of each process (py-spy, top -H): the one at 100 % is the limit; "
            "--api-server-count, cores, CUDA graphs",
            "shorter gaps between steps",
        ),
        Severity.WARNING,
        0.55,
        rivals=("a link between cards, or a disk",),
        explains=frozenset({Label.UNDETERMINED}),
    )


def slower_than_offline(e: Evidence) -> Iterator[Finding]:
    """The engine in a loop of its own against the same engine behind its server: what lies between is the
    front end (HTTP, templates, tokenizing, streams), which is work of the CPU.
    """
    pairs_of = [
        (a, b)
        for prefixes in (("gpu:",), ("client:", "runs:", "measured:"))
        for a in _named(e, prefixes, offline=True)
        for b in _named(e, prefixes, offline=False)
    ]
    for offline, served in pairs_of:
        if served.last and offline.last and offline.last > 1.3 * served.last and not start_failed(e):
            yield Finding(
                Label.CPU,
                f"Offline it is {offline.last / served.last:.1f} times as much as behind the server: "
                f"the front end "
                "takes the difference",
                (fact(e, served.name), fact(e, offline.name)),
                Advice(
                    "a version whose front end has its own process (V1), --api-server-count 2 to 4, "
                    "cores for "
                    "them; a load that keeps as many requests open as the offline run",
                    "up to the offline figure",
                    "none",
                    "both again",
                ),
                Severity.WARNING,
                0.65,
                rivals=(
                    "a client that keeps fewer requests open than the offline run: num_requests_running",
                ),
                explains=frozenset({Label.UNDETERMINED, Label.MEMORY_BANDWIDTH}),
            )
            return


def _named(e: Evidence, prefixes: tuple[str, ...], *, offline: bool) -> list[Reading]:
    """Rates, or shares in which the card is used, of the offline run or of the others."""
    return [
        r
        for prefix in prefixes
        for r in e.under(prefix)
        if (_OFFLINE.search(r.name) is not None) is offline and _MORE_IS_BETTER.search(r.name)
    ]


_OFFLINE = re.compile(r"offline|llm_class|in_process|engine_only|benchmark_throughput")
_MORE_IS_BETTER = re.compile(r"util|tok|throughput|rps|req")


def threads_of_the_host(e: Evidence) -> Iterator[Finding]:
    """In a container torch starts a thread for each core of the host; on fewer cores they wait for each
    other.
    """
    text = e.told() + " ".join(f" {r.name}={r.text}" for r in e.under("env:")).lower()
    threads = e.number("env:OMP_NUM_THREADS", "hardware:omp_num_threads", "workload:omp_num_threads")
    inside = re.search(r"kubernetes|k8s|docker|container|\bpod\b|cgroup|openshift", text)
    unset = "omp_num_threads" in text and threads is None and not re.search(r"omp_num_threads\W*\d", text)
    if inside and unset and not start_failed(e):
        yield Finding(
            Label.CPU,
            "OMP_NUM_THREADS is not set in a container: torch starts a thread for every core of the host",
            (Fact(text[:160]),),
            Advice(
                "OMP_NUM_THREADS = the container's cores (1 for each GPU worker is enough)",
                "no threads that wait",
            ),
            Severity.WARNING,
            0.65,
        )


def images_on_few_cores(e: Evidence) -> Iterator[Finding]:
    """Images are fetched, decoded and resized on the CPU, in the API server's process, before the card sees
    them.
    """
    cores = _cores(e)
    images = [
        r for r in e.under("workload:") if re.search(r"image|video|audio|page|frame", r.name) and r.last
    ]
    if images and cores is not None and cores <= FEW_FOR_IMAGES and not start_failed(e):
        yield Finding(
            Label.CPU,
            f"Requests with images on {cores:g} cores: preprocessing takes turns before the card sees them",
            (*(fact(e, r.name) for r in images[:2]), Fact(f"{cores:g} cores")),
            Advice(
                "more cores, --api-server-count 2 to 4 (processes; threads share one lock), smaller "
                "images from the client, --mm-processor-cache-gb where images repeat",
                "more images a second",
                "host memory",
                "GPU use rises with the same traffic",
            ),
            Severity.WARNING,
            0.65,
            explains=frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.COMPUTE}),
        )


def too_many_threads(e: Evidence) -> Iterator[Finding]:
    """Threads beyond the cores wait for each other at every layer: fewer are many times faster."""
    threads, cores = e.flag("threads") or e.flag("t") or 0.0, _cores(e)
    by_count = [q for q in quantities(e) if q.is_rate and any(_THREADS.search(word) for word in q.situation)]
    best = max((q.last for q in by_count), default=0.0)
    worst = min((q.last for q in by_count), default=0.0)
    beyond = threads > (cores or MOST_THREADS)
    if not (beyond or (worst and best > 3 * worst)):
        return
    yield Finding(
        Label.BAD_FLAGS,
        f"{threads:,.0f} threads on {cores or 'fewer'} cores"
        if beyond
        else f"{best / worst:.0f} times faster with other threads",
        tuple(fact(e, q.name) for q in by_count[:3])
        or (fact(e, "threads" if "threads" in e.flags else "t"),),
        Advice(
            "--threads = physical cores, fewer with all layers on the card",
            "many times faster",
            "none",
            "tokens a second",
        ),
        Severity.WARNING,
        0.8,
        also=(Label.CPU,),
        explains=frozenset({Label.MEMORY_BANDWIDTH, Label.UNDETERMINED, Label.COMPUTE}),
    )


_THREADS = re.compile(r"^t\d+$|thread")
FEW_FOR_IMAGES = 16
MOST_THREADS = 256
"""More cores than this has no machine that people mean."""


RULES = (
    starved_of_cpu,
    polls_while_idle,
    outside_queue_and_prefill,
    front_end_takes_it,
    card_waits,
    threads_of_the_host,
    slower_than_offline,
    images_on_few_cores,
    too_many_threads,
)
