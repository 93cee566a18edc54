"""Waits that are not the server's: clients and proxies, their limits, timeouts and buffers."""

import re
from collections.abc import Iterator

from headrace.diagnose.evidence import Evidence
from headrace.diagnose.finding import Advice, Finding, Label, Severity
from headrace.diagnose.load import increase, load_of, mean_of
from headrace.diagnose.quantities import DIRECT, THROUGH, pairs, quantities
from headrace.diagnose.rules.support import concurrency, fact, said, start_failed

POOL_LIMITS = (100, 10, 1000)
"""Connections that client libraries open at most by default: aiohttp 100, requests/urllib3 10, httpx 100."""


def through_a_proxy(e: Evidence) -> Iterator[Finding]:
    """The same server asked directly is faster. A proxy that gathers events before it sends them makes the
    first token late and the following ones come together: TTFT up, ITL down.
    """
    found = quantities(e)
    slower = [p for p in (*pairs(found, DIRECT, None), *pairs(found, DIRECT, THROUGH)) if p.times_worse > 1.3]
    if not slower or start_failed(e):
        return
    gathered = any(
        p.base.what in {"itl", "tpot"} and not p.base.is_rate and p.times_worse < 0.8
        for p in (*pairs(found, DIRECT, None), *pairs(found, DIRECT, THROUGH))
    )
    worst = max(slower, key=lambda pair: pair.times_worse)
    yield Finding(
        Label.CLIENT,
        f"{worst.base.what.upper()} is {worst.times_worse:.1f} times worse on the way than at the server"
        + (", and tokens come in bunches: the proxy buffers the stream" if gathered else ""),
        tuple(fact(e, q.name) for q in (worst.base, worst.other)),
        Advice(
            'proxy_buffering off, proxy_http_version 1.1, Connection "" (nginx); X-Accel-Buffering: no'
            if gathered
            else "look at the way: connections kept alive, TLS, DNS, retries, a limit on connections",
            "latencies as at the server",
            "none",
            "the same requests with and without the proxy",
        ),
        Severity.WARNING,
        0.9 if gathered else 0.75,
        explains=frozenset({Label.COMPUTE, Label.QUEUEING, Label.COLD_START, Label.UNDETERMINED}),
    )


def connection_limit(e: Evidence) -> Iterator[Finding]:
    """Running stands at a round number that no setting of the server gives, and nobody waits: the client's
    pool.
    """
    load = load_of(e)
    plateau = load.peak_running
    caps = {e.flag(name) for name in ("max-num-seqs", "max-running-requests", "max-num-active-seqs")}
    offered = concurrency(e)
    held = len(load.running) == 1 or sum(r == plateau for r in load.running) >= 2
    # As many as the clients mean to send is no limit of theirs.
    at_limit = plateau in POOL_LIMITS and plateau > 10 and plateau not in caps and held and plateau != offered
    at_limit = at_limit and load.peak_kv < 0.9
    below = (
        offered is not None
        and plateau
        and plateau < 0.7 * offered
        and load.peak_kv < 0.9
        and bool(load.waiting)
    )
    if load.peak_waiting == 0 and load.running and not start_failed(e) and (at_limit or below):
        yield Finding(
            Label.CLIENT,
            f"{plateau:,.0f} run and none wait: no more than that arrive"
            + (
                f" of {offered:,.0f} the clients mean to send"
                if below and offered
                else ", the default of a client's pool"
            ),
            (fact(e, load.names["running"]),),
            Advice(
                "raise the client's limit: aiohttp TCPConnector(limit=0), httpx "
                "Limits(max_connections=None), or more client processes; look at the proxy's limit too",
                "as many requests as were meant",
                "none on the server's side until its own limits",
                "num_requests_running above that number",
            ),
            Severity.WARNING,
            0.8 if at_limit else 0.6,
            explains=frozenset({Label.UNDETERMINED, Label.COMPUTE}),
        )


def server_is_faster(e: Evidence) -> Iterator[Finding]:
    """The server's TTFT starts when its front end has read the request: what a client sees beyond is on the
    way.
    """
    server = mean_of(e, "vllm:time_to_first_token_seconds") or next(
        (
            q.last
            for q in quantities(e, ("vllm:", "server:", "log:"))
            if q.what in {"ttft", "first"} and not q.is_rate
        ),
        None,
    )
    client = next(
        (
            q
            for q in quantities(e, ("client:",))
            if q.what == "ttft" and q.stat in {"mean", "avg", "p50", "median", ""}
        ),
        None,
    )
    if server and client and client.last > 2 * server and client.last - server > 0.2 and not start_failed(e):
        yield Finding(
            Label.CLIENT,
            f"TTFT is {client.last:.2f} s for the client and {server:.2f} s for the server: the rest is "
            f"on the way",
            (fact(e, client.name),),
            Advice(
                "measure beside the server; then proxy, TLS, DNS, retries, the client's own queue",
                "the difference",
            ),
            Severity.WARNING,
            0.75,
            explains=frozenset({Label.QUEUEING, Label.COMPUTE, Label.UNDETERMINED}),
        )


_LIMIT = re.compile(
    r"conn(?:ection)?s?(?:_|$)|pool|limit|worker_connections|threads|semaphore|keep_?alive|max_concurrency"
)


def told_limit(e: Evidence) -> Iterator[Finding]:
    """A limit of the client or the proxy at which running stands."""
    load = load_of(e)
    if not load.peak_running or load.peak_waiting or start_failed(e):
        return
    for name, limit in _limits(e):
        if abs(load.peak_running - limit) <= 1:
            yield Finding(
                Label.CLIENT,
                f"Running stands at {load.peak_running:,.0f}, which is a limit of the client: {name}",
                (fact(e, name), fact(e, load.names["running"])),
                Advice("raise that limit", "as many requests as were meant"),
                Severity.WARNING,
                0.8,
            )
            return


def _limits(e: Evidence) -> Iterator[tuple[str, float]]:
    """Numbers under the name of a limit, and those that stand in words: ThreadPoolExecutor(max_workers=8)."""
    for reading in (*e.under("client:"), *e.under("workload:"), *e.under("proxy:")):
        if _LIMIT.search(reading.name) and reading.last:
            yield reading.name, reading.last
        elif found := _LIMIT_IN_WORDS.search(reading.text):
            yield reading.name, float(found[1] or found[2])


_LIMIT_IN_WORDS = re.compile(
    r"(?:max_workers|limit(?:_per_host)?|max_connections|pool_?(?:size|maxsize)?|semaphore|threads)\W{1,3}(\d{1,6})\b|"
    r"\b(\d{1,6}) (?:threads|workers|connections|coroutines|processes)\b",
    re.IGNORECASE,
)


def behind_a_proxy(e: Evidence) -> Iterator[Finding]:
    """Somebody says that requests come through a proxy, and the server itself has neither queue nor full
    KV.
    """
    load = load_of(e)
    text = " ".join(f"{r.name} {r.text}" for r in e.under("workload:")).lower()
    way = re.search(
        r"nginx|ingress|cloudflare|haproxy|traefik|envoy|istio|gateway|proxy|tunnel|load balancer|"
        r"litellm|kong|\balb\b",
        text,
    )
    slow = [q for q in quantities(e, ("client:",)) if not q.is_rate and q.last > 0.5]
    errors = [
        r
        for r in e.under("client:")
        if re.search(r"50\d|error|timeout|disconnect|reset|fail", r.name) and r.last
    ]
    if way and (slow or errors) and load.peak_waiting == 0 and load.peak_kv < 0.9 and not start_failed(e):
        yield Finding(
            Label.CLIENT,
            f"What is slow comes through {way[0]}, and the server shows no queue",
            tuple(fact(e, q.name) for q in slow[:2]) or (fact(e, errors[0].name),),
            Advice(
                "ask the server directly; buffering, read timeouts and connection limits of the proxy",
                "the difference",
            ),
            Severity.WARNING,
            0.6,
            explains=frozenset({Label.UNDETERMINED}),
        )


_AFTER_A_PAUSE = frozenset({"idle", "pause", "paused", "sleep", "waiting"})


def connects_again(e: Evidence) -> Iterator[Finding]:
    """The server closes an idle connection after seconds (uvicorn: 5): the next request pays for a new
    one.
    """
    found = quantities(e)
    slower = [p for p in pairs(found, _AFTER_A_PAUSE, None) if p.times_worse < 1 / 1.4 and not p.base.is_rate]
    kept = any("keep" in r.name for r in e.under("workload:"))
    if slower and not start_failed(e) and (kept or any(p.base.says({"after"}) for p in slower)):
        yield Finding(
            Label.CLIENT,
            "The first request after a pause is slower: its connection was closed and is made again",
            (fact(e, slower[0].base.name), fact(e, slower[0].other.name)),
            Advice(
                "VLLM_HTTP_TIMEOUT_KEEP_ALIVE above the pause, a client that keeps connections alive, a "
                "proxy that does",
                "no new TCP and TLS handshake",
            ),
            Severity.NOTE,
            0.65,
        )


def gave_up(e: Evidence) -> Iterator[Finding]:
    """VLLM ends no request by itself for taking long: one that is aborted while tokens are made was given up
    by its client or by a proxy's timeout.
    """
    told = [r for r in (*e.under("log:"), *e.under("client:")) if "abort" in r.name and (r.last or 0) > 0]
    lines, load = e.of("aborted"), load_of(e)
    if not (told or lines) or start_failed(e) or e.of("engine_dead", "stalled") or load.peak_waiting > 0:
        return
    if load.peak_kv >= 0.9 or (load.generated and max(load.generated) == 0):
        return
    yield Finding(
        Label.CLIENT,
        "Requests are given up by their client while the server still answers them: a timeout on the way",
        tuple(said(line) for line in lines[:2]) + tuple(fact(e, r.name) for r in told[:2]),
        Advice(
            "stream=True, a read timeout above the longest answer (client and proxy), no automatic retries; "
            "max_tokens and stop where answers run away",
            "answers arrive, nothing is computed for nobody",
            "a caller that waits longer",
            "no more 'Aborted request', request_success_total{finished_reason=stop} grows",
        ),
        Severity.WARNING,
        0.72,
        rivals=("answers without an end: request_generation_tokens, finished_reason=length",),
    )


def sent_again(e: Evidence) -> Iterator[Finding]:
    """A server that answered more requests than its clients mean to have sent got some of them again: a
    timeout with automatic retries.
    """
    served = increase(e, "vllm:request_success_total")
    meant = e.number("client:requests", "client:sent", "workload:requests", "workload:num_prompts")
    if served and meant and served > 1.5 * meant and not start_failed(e):
        yield Finding(
            Label.CLIENT,
            f"The server answered {served:,.0f} requests of the {meant:,.0f} that clients mean to have sent",
            (fact(e, "vllm:request_success_total"),),
            Advice(
                "max_retries=0 and a read timeout above the longest answer; else retries with a budget",
                "nothing is computed twice",
                "errors that were hidden show",
                "as many answers as requests",
            ),
            Severity.WARNING,
            0.65,
            rivals=("requests of somebody else, or from before: take two scrapes around the run",),
            explains=frozenset({Label.UNDETERMINED}),
        )


def first_is_last(e: Evidence) -> Iterator[Finding]:
    """A first token that comes with the last one was made long before: the answer is not streamed, or is kept
    back on the way.
    """
    found = [q for q in quantities(e, ("client:",)) if not q.is_rate and not q.situation]
    firsts = {q.stat: q for q in found if q.what == "ttft"}
    for whole in (q for q in found if q.what in {"e2e", "e2el", "latency", "request", "response"}):
        first = firsts.get(whole.stat)
        tokens = e.number("workload:output_tokens", "workload:max_tokens", "workload:output_len") or 64
        if first is not None and first.last > 0.9 * whole.last > 0.5 and tokens >= 32 and not start_failed(e):
            yield Finding(
                Label.CLIENT,
                f"The first token comes with the last: TTFT {first.last:.2f} s of {whole.last:.2f} s",
                (fact(e, first.name), fact(e, whole.name)),
                Advice(
                    "stream=True in the request; no buffering in the proxy (proxy_buffering off)",
                    "TTFT as the server makes it",
                    "none",
                    "vllm:time_to_first_token_seconds beside the client's",
                ),
                Severity.WARNING,
                0.65,
                rivals=("answers of a few tokens after a long prompt: their TTFT is most of it",),
                explains=frozenset({Label.UNDETERMINED}),
            )
            return


def lines_of_the_way(e: Evidence) -> Iterator[Finding]:
    """Clients and proxies say themselves that they gave up, while the server shows no want of anything."""
    events = e.of("proxy_error", "client_error")
    load = load_of(e)
    if not events or load.peak_waiting > 0 or load.peak_kv >= 0.9 or start_failed(e) or e.of("engine_dead"):
        return
    yield Finding(
        Label.CLIENT,
        "A client or a proxy gave up on requests; nothing here says that the server was short of anything",
        tuple(said(event) for event in events[:2]),
        Advice(
            "read timeouts above the longest answer, streaming on, as many connections as requests; then "
            "the server's waiting and running at that time",
            "requests end as answers",
            "a caller that waits longer",
            "the same request sent beside the server",
        ),
        Severity.WARNING,
        0.55,
        rivals=("a server that stands still or whose queue is long: its /metrics at that time",),
    )


def cut_at_a_round_time(e: Evidence) -> Iterator[Finding]:
    """Requests that fail after just so many seconds as somebody sets: nothing in a server counts to 300."""
    limit = next(
        (
            r
            for prefix in ("client:", "workload:", "proxy:")
            for r in e.under(prefix)
            if _CUT.search(r.name) and r.last in TIMEOUTS_S
        ),
        None,
    )
    errors = sum(r.last or 0.0 for r in (*e.under("workload:"), *e.under("log:")) if "server_err" in r.name)
    if limit is None or errors or start_failed(e) or e.of("engine_dead", "stalled"):
        return
    yield Finding(
        Label.CLIENT,
        f"Requests are cut after {limit.last:g} s: a timeout of the client or of what stands between",
        (fact(e, limit.name),),
        Advice(
            "the read timeout (proxy_read_timeout, idle timeout of the load balancer, the "
            "client's own) above "
            "the longest TTFT; then fewer or shorter prompts so that TTFT falls below it",
            "requests end as answers",
            "a caller that waits longer",
            "the same request sent beside the server",
        ),
        Severity.CRITICAL,
        0.8,
        rivals=("a queue that makes TTFT so long: waiting and running at that time",),
        explains=frozenset({Label.UNDETERMINED, Label.QUEUEING, Label.STALL}),
    )


TIMEOUTS_S = (
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    60.0,
    90.0,
    100.0,
    120.0,
    180.0,
    240.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
)
"""What proxies, balancers and client libraries wait by default, and what people set."""
_CUT = re.compile(
    r"(?:cut|closed?|fail\w*|abort\w*|reset|disconnect\w*|drop\w*|error\w*|ends?|lost)_(?:after|at)_?(?:s|sec|seconds)$|(?:cut|closed|fail\w*|abort\w*|reset|disconnect\w*|drop\w*|lost)_(?:s|seconds)$"
)


RULES = (
    gave_up,
    first_is_last,
    sent_again,
    lines_of_the_way,
    through_a_proxy,
    connection_limit,
    server_is_faster,
    told_limit,
    connects_again,
    behind_a_proxy,
    cut_at_a_round_time,
)
