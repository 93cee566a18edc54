"""GPUs in numbers: memory, bandwidth, arithmetic, links, and how much of these a server gets out.

Peaks come from spec sheets. The two efficiencies are what makes a spec sheet honest: the share of
peak arithmetic that large matrix products reach inside vLLM, and the share of peak bandwidth that
streaming weights and KV cache reaches. `certainty` says where they come from:

    MEASURED   from a run of vLLM on this card
    DERIVED    from a measurement on this card outside vLLM, or of vLLM on its sibling
    SPEC_ONLY  no measurement was found: round figures near those of the measured cards stand in

Sources of every figure are in `specs` and `evidence`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30
_T = 1e12
_G = 1e9

GUESSED_COMPUTE_EFFICIENCY = 0.70
GUESSED_BANDWIDTH_EFFICIENCY = 0.80


class Certainty(StrEnum):
    """How far the efficiencies of a card can be trusted."""

    MEASURED = "measured"
    DERIVED = "derived"
    SPEC_ONLY = "spec only"


class Dtype(StrEnum):
    """Number formats of weights and KV cache, by vLLM's names where it has one."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP4 = "fp4"
    NVFP4 = "nvfp4"
    INT4 = "int4"

    @property
    def bytes(self) -> float:
        """Of one number, the scales of its group included."""
        return _BYTES[self]


_BYTES = {
    Dtype.FP32: 4.0,
    Dtype.BF16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.INT8: 1.0,
    Dtype.FP4: 0.53125,  # MXFP4: 4 bits, and 8 bits of scale for 32 numbers
    Dtype.NVFP4: 0.5625,  # 4 bits, and 8 bits of scale for 16 numbers
    Dtype.INT4: 0.515625,  # AWQ, GPTQ: 4 bits, and 16 bits of scale for 128 numbers; zero points left out
}


@dataclass(frozen=True, slots=True)
class Link:
    """How GPUs of one server reach each other, for an all-reduce of vLLM."""

    name: str
    bytes_per_s: float
    """One direction, one GPU."""
    latency_s: float
    """Of an all-reduce of a few kilobytes inside a CUDA graph."""


# H100 TP 2, bf16, hidden 8192: 10, 12, 17 us for 0.5, 1, 2 MB (github.com/vllm-project/vllm/pull/22086):
# 7.5 us and 220 GB/s, which is half of one direction. The other NVLinks keep that ratio.
_NVLINK3 = Link("NVLink 3", 0.5 * 300 * _G, 8e-6)
_NVLINK4 = Link("NVLink 4", 0.5 * 450 * _G, 7.5e-6)
_NVLINK5 = Link("NVLink 5", 0.5 * 900 * _G, 7.5e-6)
# NCCL inside a CUDA graph, four V100 behind one PCIe 3 switch: 19 us at 4 KB, 52 us at 128 KB, 84 us at
# 384 KB (github.com/haohervchb/sglang-V100/pull/2). Newer PCIe is given the same latency and, as NVLink, half
# of one direction.
_PCIE4 = Link("PCIe 4 x16", 0.5 * 32 * _G, 20e-6)
_PCIE5 = Link("PCIe 5 x16", 0.5 * 64 * _G, 20e-6)
_PCIE4_X8 = Link("PCIe 4 x8", 0.5 * 16 * _G, 20e-6)
_PCIE5_X8 = Link("PCIe 5 x8", 0.5 * 32 * _G, 20e-6)
_XGMI = Link("Infinity Fabric", 0.5 * 448 * _G, 15e-6)  # latency: no measurement found, a guess


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. Peaks are dense: sparsity doubles a spec sheet and no language model."""

    name: str
    memory_bytes: int
    """What the driver reports as total, which `gpu_memory_utilization` is a share of."""
    bytes_per_s: float
    flops_per_s: Mapping[Dtype, float]
    """By the format of the operands; one that is missing is computed in bf16."""
    link: Link
    specs: str
    compute_efficiency: float = GUESSED_COMPUTE_EFFICIENCY
    bandwidth_efficiency: float = GUESSED_BANDWIDTH_EFFICIENCY
    certainty: Certainty = Certainty.SPEC_ONLY
    evidence: str = "none found for vLLM on this card"
    capability: tuple[int, int] | None = None
    """CUDA's number for what it can compute; None: not of NVIDIA."""

    def peak_flops_per_s(self, dtype: Dtype) -> float:
        """Weights in a format that the card cannot multiply are widened to bf16 first."""
        return self.flops_per_s.get(dtype, self.flops_per_s[Dtype.BF16])


def _flops(bf16: float, fp8: float | None = None, fp4: float | None = None) -> dict[Dtype, float]:
    """Teraflops by format; int8 runs at the rate of fp8, and on Ampere, which has no fp8, at twice bf16."""
    peaks = {Dtype.BF16: bf16 * _T, Dtype.INT8: (fp8 or 2 * bf16) * _T}
    if fp8 is not None:
        peaks[Dtype.FP8] = fp8 * _T
    if fp4 is not None:
        peaks[Dtype.FP4] = peaks[Dtype.NVFP4] = fp4 * _T
    return peaks


def geforce_tflops(sms: int, boost_ghz: float) -> float:
    """In bf16: 512 operations of an SM in a cycle, accumulated in FP32, from Ampere on; which gives what is
    published of the RTX 3090 (71.2), 4090 (165.15) and 5090 (209.5).
    """
    return sms * boost_ghz * 0.512


def _ada(sms: int, boost_ghz: float) -> dict[Dtype, float]:
    return _flops(geforce_tflops(sms, boost_ghz), 2 * geforce_tflops(sms, boost_ghz))


def _blackwell(sms: int, boost_ghz: float) -> dict[Dtype, float]:
    """In the proportions of the RTX 5090: fp8 twice as fast, fp4 eight times."""
    bf16 = geforce_tflops(sms, boost_ghz)
    return _flops(bf16, 2 * bf16, 8 * bf16)


_A100_EVIDENCE = (
    "75 tokens/s at concurrency 1, Llama-3.1-8B bf16, 1,024 prompt tokens, vLLM 0.23, A100 40GB "
    "(johnmusgrave.com/p/vllm-throughput-latency-sweep-on): 13.3 ms for 15.2 GB and 1 ms of overhead; "
    "bf16 products alone reach 293 of 312 TFLOP/s (github.com/mila-iqia/milabench/pull/240, where the card "
    "is told by its FP32 peak)"
)
_H100_EVIDENCE = (
    "all-reduce measured (github.com/vllm-project/vllm/pull/22086); batch-1 decode outside vLLM is bound by "
    "launches, CUDA graphs give 1.26x (arXiv 2605.30571), so its 27 % of peak bandwidth says nothing of vLLM"
)

_CARDS = (
    Gpu(
        "a10g", int(22.05 * GIB), 600 * _G, _flops(70), _PCIE4,
        specs="600 GB/s, 24 GB: baseten.co/blog/nvidia-a10-vs-a10g-for-ml-model-inference; 70 TFLOP/s: "
        "NVIDIA A10G datasheet, not re-read",
        capability=(8, 6),
    ),
    Gpu(
        "l4", int(22.03 * GIB), 300 * _G, _flops(121, 242), _PCIE4,
        specs="aiconfigurator 0.12 systems/l4.yaml; 125 and 251 TFLOP/s at full boost: "
        "hmc-tech.com/gpu/nvidia-l4-vs-nvidia-a2",
        bandwidth_efficiency=0.84,
        certainty=Certainty.DERIVED,
        evidence="62.3 ms a step, Qwen2.5-7B bf16, batch 1, 2,048 tokens of context, 81 % of the floor, CUDA "
        "graphs give 1.03x (arXiv 2605.30571; PyTorch SDPA, not vLLM)",
        capability=(8, 9),
    ),
    Gpu(
        "l40s", int(44.4 * GIB), 864 * _G, _flops(362.05, 733), _PCIE4,
        specs="github.com/ai-dynamo/aiconfigurator systems/l40s.yaml",
        capability=(8, 9),
    ),
    Gpu(
        "a100-40", int(39.4 * GIB), 1555 * _G, _flops(311.87), _NVLINK3,
        specs="hmc-tech.com/gpu/nvidia-l4-vs-nvidia-a100-40gb; 1,555 GB/s: "
        "sysrqmts.com/gpus/compare/nvidia-a100-sxm4-40-gb-vs-nvidia-tesla-t4",
        bandwidth_efficiency=0.79,
        certainty=Certainty.MEASURED,
        evidence=_A100_EVIDENCE,
        capability=(8, 0),
    ),
    Gpu(
        "a100-80", int(79.15 * GIB), 2039 * _G, _flops(311.87), _NVLINK3,
        specs="as a100-40; 2,039 GB/s (SXM): aiconfigurator 0.12 systems/a100_sxm.yaml",
        bandwidth_efficiency=0.79,
        certainty=Certainty.DERIVED,
        evidence=_A100_EVIDENCE,
        capability=(8, 0),
    ),
    Gpu(
        "h100", int(79.11 * GIB), 3350 * _G, _flops(989.4, 1978.9), _NVLINK4,
        specs="glennklockwood.com/garden/processors/h100 (SXM5) and aiconfigurator 0.12 "
        "systems/h100_sxm.yaml; memory: github.com/vllm-project/vllm/issues/27508",
        evidence=_H100_EVIDENCE,
        capability=(9, 0),
    ),
    Gpu(
        "h100-pcie", int(79.11 * GIB), 2000 * _G, _flops(756, 1513), _PCIE5,
        specs="archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html (halved: it lists sparse figures); "
        "aiconfigurator 0.12 systems/h100_pcie.yaml",
        capability=(9, 0),
    ),
    Gpu(
        "h200", int(139.8 * GIB), 4800 * _G, _flops(989.4, 1978.9), _NVLINK4,
        specs="arithmetic of the H100 (glennklockwood.com/garden/processors/h100); 141 GB, 4.8 TB/s: "
        "aiconfigurator 0.12 systems/h200_sxm.yaml",
        capability=(9, 0),
    ),
    Gpu(
        "b200", int(178.4 * GIB), 7700 * _G, _flops(2250, 4500, 9000), _NVLINK5,
        specs="aiconfigurator 0.12 systems/b200_sxm.yaml; memory, 183,359 MiB: "
        "github.com/vllm-project/vllm/pull/43050",
        capability=(10, 0),
    ),
    Gpu(
        "rtx-4090", int(23.52 * GIB), 1008 * _G, _flops(165.15, 330.3), _PCIE4,
        specs="waredb.com/processor/nvidia-geforce-rtx-4090 (FP32 accumulation), and "
        "hmc-tech.com/gpus/nvidia-geforce-rtx-4090-vs-nvidia-rtx-pro-5000-blackwell",
        capability=(8, 9),
    ),
    Gpu(
        "rtx-pro-6000", int(94.97 * GIB), 1792 * _G, _flops(503.8, 1007.6, 2015.2), _PCIE5,
        specs="1,792 GB/s: joshua8.ai/blackwell-gpu-shootout; 504 TFLOP/s: NVIDIA datasheet, not re-read",
        bandwidth_efficiency=0.76,
        certainty=Certainty.DERIVED,
        evidence="the Server Edition's efficiencies",
        compute_efficiency=0.72,
        capability=(12, 0),
    ),
    Gpu(
        "rtx-pro-6000-server", int(94.97 * GIB), 1597 * _G, _flops(467.8, 935.6, 1871.2), _PCIE5,
        specs="1,597 GB/s: what the run under `evidence` states; its 467.8 TFLOP/s and 97,887 MiB: "
        "github.com/ai-dynamo/aiconfigurator systems/rtxpro6000_blackwell_server.yaml (which has 1,792 GB/s)",
        compute_efficiency=0.72,
        bandwidth_efficiency=0.76,
        certainty=Certainty.MEASURED,
        evidence="the first 100 of 300 requests, Llama-3.1-8B bf16, vLLM 0.19 (github.com/casys-kaist/"
        "LLMServingSim, bench/examples), by `python -m bench.fidelity --target reference`",
        capability=(12, 0),
    ),
    Gpu(
        "mi300x", int(191.5 * GIB), 5300 * _G, _flops(1307.4, 2614.9), _XGMI,
        specs="1.3 and 2.6 PFLOP/s, 5.3 TB/s: jaredwatkins.com/research/ai-accelerators/amd-instinct/"
        "mi300-series; 448 GB/s: emergentmind.com/topics/amd-mi300x-gpu",
    ),
    Gpu(
        "h100-nvl", int(93.1 * GIB), 3938 * _G, _flops(835.5, 1671), _PCIE5,
        specs="NVIDIA H100 NVL datasheet, not re-read (halved: it lists sparse figures)",
        capability=(9, 0),
    ),
    Gpu(
        "gh200", int(94.5 * GIB), 4022 * _G, _flops(989.4, 1978.9), _PCIE5,
        specs="NVIDIA GH200 datasheet, 96 GB HBM3, not re-read",
        capability=(9, 0),
    ),
    Gpu(
        "h20", int(95.1 * GIB), 4000 * _G, _flops(148, 296), _NVLINK4,
        specs="148 TFLOP/s, 4 TB/s: github.com/ai-dynamo/aiconfigurator systems/h20_sxm.yaml (its memory is "
        "another variant's); 96 GB: NVIDIA H20 datasheet, not re-read",
        capability=(9, 0),
    ),
    Gpu(
        "b300", int(268 * GIB), 7750 * _G, _flops(2250, 4500, 14000) | {Dtype.INT8: 153.5 * _T}, _NVLINK5,
        specs="aiconfigurator 0.12 systems/b300_sxm.yaml, int8 among it; 13,125 TFLOP/s in fp4: "
        "glennklockwood.com/garden/processors/B300; memory: 268 GiB in a start-up line of vLLM that "
        "InferenceX keeps, 275,040 MiB in aiconfigurator",
        capability=(10, 3),
    ),
    Gpu(
        "t4", int(14.56 * GIB), 320 * _G, _flops(65), _PCIE4,
        specs="65 TFLOP/s in fp16: hmc-tech.com/gpu/nvidia-a800-40gb-vs-nvidia-t4; 320 GB/s: "
        "sysrqmts.com/gpus/compare/nvidia-a100-sxm4-40-gb-vs-nvidia-tesla-t4; memory: torch's own message "
        "(\"total capacity of 14.56 GiB\"), as below",
        capability=(7, 5),
    ),
    Gpu(
        "v100-32", int(31.73 * GIB), 900 * _G, _flops(125), _NVLINK3,
        specs="125 TFLOP/s in fp16 (SXM2), 900 GB/s: NVIDIA V100 datasheet, not re-read; 113 for PCIe: "
        "hmc-tech.com/gpu/nvidia_v100-vs-nvidia_t40; memory: torch's message",
        capability=(7, 0),
    ),
    Gpu(
        "a10", int(22.06 * GIB), 600 * _G, _flops(125), _PCIE4,
        specs="NVIDIA A10 datasheet, not re-read; memory as the A10G's",
        capability=(8, 6),
    ),
    Gpu(
        "a40", int(44.35 * GIB), 696 * _G, _flops(149.7), _PCIE4,
        specs="696 GB/s: sysrqmts.com, A40 PCIe; 149.7 TFLOP/s: NVIDIA A40 datasheet, not re-read",
        capability=(8, 6),
    ),
    Gpu(
        "rtx-a6000", int(47.53 * GIB), 768 * _G, _flops(154.8), _PCIE4,
        specs="768 GB/s: servethehome.com/nvidia-rtx-a6000-48gb-gpu-drops-quadro-designation; 154.8 TFLOP/s: "
        "llmperf.net/categories/gpu/Nvidia-A6000-GPUs (after Microway); memory: torch's message",
        capability=(8, 6),
    ),
    Gpu(
        "rtx-6000-ada", int(47.5 * GIB), 960 * _G, _flops(364.2, 728.5), _PCIE4,
        specs="NVIDIA RTX 6000 Ada datasheet, not re-read (halved); memory: torch's message",
        capability=(8, 9),
    ),
    Gpu(
        "rtx-3090", int(23.58 * GIB), 936 * _G, _flops(71), _PCIE4,
        specs="71 TFLOP/s with FP32 accumulation: NVIDIA GA102 whitepaper, not re-read; memory: "
        "github.com/vllm-project/vllm/issues/10517",
        capability=(8, 6),
    ),
    Gpu(
        "rtx-5090", int(31.36 * GIB), 1792 * _G, _flops(209.5, 419, 1676), _PCIE5,
        specs="github.com/ai-dynamo/aiconfigurator systems/rtx_5090.yaml, halved but for fp4 (419 and 838 "
        "TFLOP/s are of FP16 accumulation, twice that of FP32 on GeForce cards); memory: torch's message",
        capability=(12, 0),
    ),
    Gpu(
        "mi325x", int(255.5 * GIB), 6000 * _G, _flops(1307.4, 2614.9), _XGMI,
        specs="arithmetic of the MI300X; 6 TB/s: wiaix.com/amd-instincttm-mi325x-accelerators; 256 GB: AMD "
        "MI325X datasheet, not re-read",
    ),
    Gpu(
        "mi355x", int(287.5 * GIB), 8000 * _G, _flops(2500, 5000, 10000), _XGMI,
        specs="288 GB, 8 TB/s: boston-uk-l.azurewebsites.net/blog/2025/08/14/amd-instinct-mi355x.aspx; 5 "
        "PFLOP/s in fp8: world-today-news.com/?p=7253162 (ISSCC 2026), half in bf16 and twice in fp4",
    ),
    Gpu(
        "rtx-3060", int(11.75 * GIB), 360 * _G, _flops(geforce_tflops(28, 1.777)), _PCIE4,
        specs="28 SMs, 1,777 MHz, 360 GB/s: pcpartdb.com/gpus/view/nvidia-geforce-rtx-3060-12-gb-ga104; "
        "memory: torch's message (github.com/PromtEngineer/localGPT-Vision/issues/14)",
        capability=(8, 6),
    ),
    Gpu(
        "rtx-4060-ti", int(15.48 * GIB), 288 * _G, _ada(34, 2.535), _PCIE4_X8,
        specs="the card with 16 GB: 4,352 cores (34 SMs), 2,535 MHz, x8: "
        "cputronic.com/gpu/nvidia-geforce-rtx-4060-ti-16-gb; 288 GB/s: topcpu.net (news on the RTX 5060 Ti); "
        "memory as the RTX 5080's",
        capability=(8, 9),
    ),
    Gpu(
        "rtx-4070-ti-super", int(15.48 * GIB), 672 * _G, _ada(66, 2.61), _PCIE4,
        specs="66 SMs, 2,610 MHz, 672.3 GB/s: "
        "topcpu.net/vi/gpu-c/geforce-rtx-4070-ti-super-vs-geforce-rtx-2060-tu104; memory as the RTX 5080's",
        capability=(8, 9),
    ),
    Gpu(
        "rtx-4080", int(15.48 * GIB), 717 * _G, _ada(76, 2.505), _PCIE4,
        specs="9,728 cores (76 SMs), 2,505 MHz, 716.8 GB/s: cpu-gpu.alldbin.com, GeForce RTX 4080; memory as "
        "the RTX 5080's",
        capability=(8, 9),
    ),
    Gpu(
        "rtx-5060-ti", int(15.48 * GIB), 448 * _G, _blackwell(36, 2.572), _PCIE5_X8,
        specs="the card with 16 GB: 4,608 cores (36 SMs), 2,572 MHz, 448 GB/s: "
        "cputronic.com/gpu/compare/nvidia-geforce-rtx-5060-ti-16-gb-vs-nvidia-geforce-rtx-2060-super; x8: "
        "NVIDIA, not re-read; memory as the RTX 5080's",
        capability=(12, 0),
    ),
    Gpu(
        "rtx-5080", int(15.48 * GIB), 960 * _G, _blackwell(84, 2.617), _PCIE5,
        specs="84 SMs, 2,617 MHz, 960 GB/s: fpsbench.com, GeForce RTX 5080 beside Radeon 540; "
        "memory: torch's message (github.com/vllm-project/vllm/issues/14452)",
        capability=(12, 0),
    ),
    Gpu(
        "a30", int(23.5 * GIB), 933 * _G, _flops(165), _PCIE4,
        specs="NVIDIA A30 datasheet, not re-read; memory: torch's message "
        "(github.com/LHRLAB/ChatKBQA/issues/2)",
        capability=(8, 0),
    ),
    Gpu(
        "l40", int(44.4 * GIB), 864 * _G, _flops(181.05, 362.1), _PCIE4,
        specs="864 GB/s, 181.05 and 362 TFLOP/s dense: mullet.se/product.html?product_id=355414 "
        "(hmc-tech.com, by the chip alone, has twice that); memory as the L40S's",
        capability=(8, 9),
    ),
    Gpu(
        "gb10", int(121.69 * GIB), 273 * _G, _blackwell(48, 2.52), _PCIE5_X8,
        specs="DGX Spark: 6,144 cores (48 SMs), 1 PFLOP/s in fp4 with sparsity: "
        "dgx-spark.warehack.ing/hardware; 273 GB/s: blog.kubesimplify.com, day 3 of DGX Spark; the clock is "
        "what that PFLOP/s asks for, and bf16 is taken as an eighth of fp4, as GeForce has it (RTX PRO: a "
        "quarter); memory, which the host shares: "
        "github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
        capability=(12, 1),
    ),
)  # fmt: skip

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _CARDS}
