"""vLLM 0.32's flags that are not here, each with what to do instead.

A test runs vLLM's own parser and finds one that is missing, or that vLLM has no longer.
"""

_GROUPS = {
    "one process computes, on one CPU: leave it out": """
        aggregate-engine-logging all2all-backend cp-kv-cache-interleave-size cpu-distributed-timeout-seconds
        data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb
        data-parallel-multi-port-external-lb data-parallel-rank data-parallel-rpc-port data-parallel-size
        data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port
        dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size
        dcp-q-replicate decode-context-parallel-size device-ids disable-custom-all-reduce
        disable-nccl-for-dp-synchronization distributed-executor-backend distributed-timeout-seconds
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s
        dp-sync-interval elastic-ep-max-dp-size enable-batch-sharded-sampling enable-dbo enable-elastic-ep
        enable-ep-weight-filter enable-eplb enable-expert-parallel enable-fault-tolerance enable-hc-sp
        enable-nccl-comm-suspend enable-scale-out eplb-config expert-placement-strategy
        fault-tolerance-config headless master-addr master-port max-parallel-loading-workers nnodes node-rank
        numa-bind numa-bind-cpus numa-bind-nodes pipeline-parallel-size prefill-context-parallel-size
        ray-workers-use-nsight tensor-parallel-size ubatch-size worker-cls worker-extension-cls
    """,
    "there is no GPU, no kernel to choose and no graph to capture: leave it out": """
        additional-config attention-backend attention-config compilation-config cudagraph-capture-sizes
        cudagraph-metrics disable-cascade-attn enable-cumem-allocator enable-flash-late-interaction
        enable-flashinfer-autotune enable-layerwise-nvtx-tracing enable-mfu-metrics enforce-eager
        gdn-prefill-backend ir-op-priority jit-monitor-mode jit-monitor-verbose kda-decode-backend
        kda-prefill-backend kernel-config linear-backend mamba-backend max-cudagraph-capture-size moe-backend
        optimization-level performance-mode profiler-config sparse-indexer-topk-backend use-fp64-gumbel
    """,
    "weights are kept as the model's file has them": """
        allow-deprecated-quantization dtype quantization quantization-config
    """,
    "the model's own file says it, and is read as it is: leave it out": """
        code-revision config-format convert disable-hybrid-kv-cache-manager disable-sliding-window
        enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint engram-config
        hf-config-path hf-overrides io-processor-plugin kv-cache-dtype-skip-layers kv-sharing-fast-prefill
        mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
        mamba-ssu-algorithm model-class-overrides model-impl pooler-config replayssm-buffer-len
        runner skip-tokenizer-init swa-bounded-replay tokenizer tokenizer-mode tokenizer-revision
        trust-remote-code use-replayssm
    """,
    "models come from a hub or this machine, as HF_HOME, HF_TOKEN and HF_ENDPOINT say: leave it out": """
        download-dir hf-token ignore-patterns load-format model-loader-extra-config pt-load-map-location
        safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
        use-tqdm-on-load weight-transfer-config
    """,
    "neither images nor sound are taken: leave it out": """
        allowed-local-media-path allowed-media-domains disable-chunked-mm-input ec-manager-config
        ec-transfer-config enable-mm-embeds interleave-mm-strings language-model-only limit-mm-per-prompt
        media-io-kwargs mm-device-do-normalize mm-encoder-attn-backend mm-encoder-attn-dtype
        mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path
        mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb
        mm-processor-cache-type mm-processor-device mm-processor-kwargs mm-shm-cache-max-object-size-mb
        mm-tensor-ipc skip-mm-profiling trust-request-mm-kwargs video-pruning-method video-pruning-rate
    """,
    "there are no adapters: serve a model into which they were merged": """
        default-mm-loras enable-lora enable-mixed-moe-lora-format enable-moe-shared-loras
        enable-tower-connector-lora fully-sharded-loras lora-dtype lora-modules lora-target-modules
        max-cpu-loras max-lora-cls-labels max-lora-rank max-loras specialize-active-lora
    """,
    "there is no speculation: leave it out": """
        diffusion-config per-request-spec-decode-metrics spec-method spec-model spec-tokens speculative-config
    """,
    "everything is in the machine's own memory: leave it out": """
        cpu-offload-gb cpu-offload-params enable-shm-tensor-arena enable-sleep-mode offload-backend
        offload-group-size offload-num-in-group offload-params offload-prefetch-step
        sleep-mode-offload-cudagraph sleep-preserve-parameter-names
    """,
    "the KV cache is in the machine's own memory: --kv-cache-memory-bytes": """
        kv-events-config kv-offloading-backend kv-offloading-size kv-transfer-config
    """,
    "prefixes are found block by block and kept until the memory is needed: leave it out": """
        prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit
    """,
    "steps are planned one at a time, as by vLLM on a CPU: leave it out": "async-scheduling",
    "--max-num-seqs and --max-num-batched-tokens are the budgets of a step": """
        max-num-active-seqs max-num-scheduled-tokens prefill-schedule-interval
    """,
    "--long-prefill-token-threshold with a number": "long-prefill-token-threshold-adaptive",
    "--scheduling-policy names the policies that are here": "scheduler-cls",
    "tools need no flag: leave it out": """
        exclude-tools-when-tool-choice-none tool-parser-plugin tool-server tool-strict-level
    """,
    "what a model thinks is part of its answer: leave it out": """
        reasoning-config reasoning-parser reasoning-parser-plugin
    """,
    "the model's own chat template is used; a request may send chat_template_kwargs": """
        chat-template chat-template-content-format default-chat-template-kwargs response-role
        trust-request-chat-template
    """,
    "each request says how it is sampled; what it leaves out has OpenAI's defaults": """
        generation-config logits-processors override-generation-config seed
    """,
    "log probabilities are the model's own, up to 20 a token: leave it out": "logprobs-mode max-logprobs",
    "one backend does all formats: leave it out": "structured-outputs-config",
    "a request takes text or token ids, and an answer is text": """
        aux-output-config enable-prompt-embeds enable-return-routed-experts return-sampling-mask
        return-tokens-as-token-ids tokens-only
    """,
    "only OpenAI's API is spoken": """
        anthropic-disabled-thinking-effort cohere-format cohere-is-reasoning-model grpc grpc-port
    """,
    "it is always so: leave it out": """
        enable-prompt-tokens-details enable-request-id-headers enable-server-load-tracking
    """,
    "an event comes with every step; the client asks for usage with stream_options": """
        enable-force-include-usage sse-keep-alive-interval
    """,
    "the header X-Headrace-Bill: 1 has an answer say where its time went": "enable-per-request-metrics",
    "give the model without a flag: headrace serve MODEL": "model",
    "one process speaks HTTP: leave it out": "api-server-count renderer-num-workers",
    "pages from anywhere may ask, as by vLLM's default; for less put a proxy before it": """
        allow-credentials allowed-headers allowed-methods allowed-origins
    """,
    "put a proxy before it that does this": "enable-ssl-refresh middleware root-path ssl-ciphers",
    "the bounds of what a request may be are fixed: leave it out": """
        h11-max-header-count h11-max-incomplete-event-size
    """,
    "there is /openapi.json and nothing to switch off: leave it out": """
        disable-fastapi-docs enable-offline-docs enable-tokenizer-info-endpoint
    """,
    "answers carry no fingerprint: leave it out": "fingerprint-mode fingerprint-value",
    "requests are not logged, so prompts cannot leak; /metrics counts them": """
        enable-log-deltas enable-log-outputs enable-log-requests max-log-len
    """,
    "there is no access log: leave it out": """
        disable-access-log-for-endpoints disable-uvicorn-access-log
    """,
    "one line every 10 s goes to stderr; --disable-log-stats ends it": """
        enable-logging-iteration-details log-config-file log-error-stack log-level logging-config
        uvicorn-log-level
    """,
    "/metrics has vLLM's default edges and names (docs/metrics.md): leave it out": """
        custom-histogram-buckets show-hidden-metrics-for-version
    """,
    "there are no traces; bills say where a request's time went": """
        collect-detailed-traces enable-trace-replay otlp-traces-endpoint
    """,
    "nothing is marked in the text: leave it out": "watermark-config",
    "variables of vLLM's environment are not read": "fail-on-environ-validation",
}

STRANGERS = {f"--{name}": reason for reason, names in _GROUPS.items() for name in names.split()}

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-q": "--quantization",
    "-sc": "--speculative-config",
    "-dc": "--diffusion-config",
    "-cc": "--compilation-config",
    "-ac": "--attention-config",
    "-O": "--optimization-level",
}
