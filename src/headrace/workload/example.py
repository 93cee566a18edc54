"""A recipe with everything in it, to start from: `headrace workload generate --example`."""

EXAMPLE = """\
# Made into a workload by `headrace workload generate FILE --output workload.jsonl`.
workload: 1                  # the version of recipes
seed: 7                      # same seed, same bytes
duration: 30m
prefix_block_tokens: 64      # what one id of a shared prefix stands for
token_time: 20ms             # what a token of an answer is taken to last, for when the next turn is due

classes:
  chat:                      # people in conversations
    rate: 0.5                # with sessions: sessions begun a second, else requests a second
    arrivals: gamma          # constant, poisson (the default), or gamma with a
    cv: 2                    # deviation of the gaps over their mean: 1 is poisson, more is bursty
    over_time:               # what the rate does; several multiply
      - {kind: day, swing: 0.5, peak_at: 15m, period: 1h}
      - {kind: spike, at: 20m, lasting: 1m, times: 4}
    prompt: {median: 60, p95: 400}              # log-normal; in a session, what each turn adds
    output: {mean: 150, most: 2000}             # exponential
    slo: ttft 500ms, itl 60ms
    shared_prefix: {tokens: 512, groups: 4, skew: 1}   # system prompts, on top of the prompt's own tokens
    tenants: {count: 20, skew: 1.2}             # the largest sends most
    sessions:
      turns: {mean: 4}
      think: {median: 20s, p95: 2m}             # from an answer to the next turn
      most_context: 16384

  agent:                     # a program that calls tools: many turns, short pauses, long contexts
    rate: 0.02
    prompt: {median: 300, p95: 3000}
    output: {median: 80, p95: 400}
    shared_prefix: {tokens: 2048}
    sessions: {turns: {uniform: [5, 40]}, think: {median: 500ms, p95: 5s}, most_context: 65536}

  docs:                      # long documents, summarised
    rate: 0.1
    over_time: [{kind: ramp, at_start: 0.5, at_end: 2}]
    prompt: {uniform: [3000, 9000]}
    output: {values: {200: 3, 600: 1}}          # 200 three times as often as 600
    priority: 1                                 # behind those of a smaller number
    slo: ttft 5s + 1ms/token
"""
