"""What a run will cost, worked out from its shape before anything starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repro.spec.catalogue import Device, ModelSpec, TierTask

FLOPS_FORMULA = "6*N + 12*L*d*T per token (forward and backward; N without position table, head counted once)"
PLANNED_MFU = 0.4  # share of the peak that a well-made 124M-1.5B run reaches on the planning device
CPU_FLOPS = 8e9  # per thread; measured with byte-level models of width 64 on the machines that the suite is tested on
CPU_STEP_SECONDS = 0.012  # fixed cost of one optimiser step of a small model on a CPU
PROCESS_GB = 1.6  # resident memory of a child that has imported torch and lightning and holds no model
SENTENCE_TOKENS = 16  # of a phrase of SST-2, with what fills up its batch
TABLE_FLOPS = 100.0  # worth of one number of a table in a step: gradient, clipping, moments (measured)
FORECAST_WIDTH = 14  # variables of Jena Climate, the widest of the series
CUDA_CONTEXT_GB = 1.0
MARGIN = 1.3  # estimates of memory are raised by this


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimate of one run: FLOPs, memory of one device in GB, minutes of wall time, GPU hours (0 on a CPU)."""

    flops: float
    memory_gb: float
    minutes: float
    gpu_hours: float
    device: str
    devices: int

    def as_json(self) -> dict[str, object]:
        """The contract's `cost` object."""
        return {
            "gpu_hours": round(self.gpu_hours, 4),
            "flops": self.flops,
            "memory_gb": round(self.memory_gb, 2),
            "device": self.device,
            "devices": self.devices,
            "minutes": round(self.minutes, 2),
        }


def parameters(model: ModelSpec) -> int:
    """Parameters of the Pre-LN baseline: blocks, embeddings, final norm; a tied head counts once."""
    d = model.d_model
    bias = 1 if model.bias else 0
    block = 12 * d * d + 2 * d + bias * (9 * d + 2 * d)
    embeddings = (model.vocab + model.context) * d
    head = 0 if model.tied else model.vocab * d
    return model.n_layer * block + embeddings + head + d + bias * d


def flops_per_token(model: ModelSpec) -> float:
    """Training FLOPs per token by `FLOPS_FORMULA`."""
    counted = parameters(model) - model.context * model.d_model
    return 6.0 * counted + 12.0 * model.n_layer * model.d_model * model.context


def memory_gb(model: ModelSpec, micro_batch: int, device: str) -> float:
    """Weights, gradients, two moments (fp32), activations of one micro-batch, and logits, in GB.

    Activations as Korthikanti et al. (2022) count them, twice for what autocast keeps beside; a GPU's attention is
    fused and keeps no matrix of tokens by tokens.
    """
    tokens = micro_batch * model.context
    weights = 16.0 * parameters(model)
    matrices = 5.0 * model.n_head * model.context if device == "cpu" else 0.0
    activations = tokens * model.n_layer * (34.0 * model.d_model + matrices) * 2.0
    logits = tokens * model.vocab * 4.0 * 3.0
    fixed = PROCESS_GB if device == "cpu" else CUDA_CONTEXT_GB
    return fixed + MARGIN * (weights + activations + logits) / 1e9


def estimate(
    model: ModelSpec, tokens: int, tokens_per_step: int, task: TierTask, precision: str, planning: Device
) -> Cost:
    """Cost of one run of `tokens` tokens."""
    flops = flops_per_token(model) * tokens
    sequences = max(1, tokens_per_step // model.context)
    memory = memory_gb(model, min(task.sequences_at_once(sequences), max(1, sequences // task.devices)), task.device)
    if task.device == "cpu":
        seconds = flops / (CPU_FLOPS * task.threads) + tokens / tokens_per_step * CPU_STEP_SECONDS
        return Cost(flops, memory, seconds / 60, 0.0, "cpu", task.devices)
    peak = planning.peak["bf16" if precision == "bf16" else "fp32"]
    hours = flops / (peak * PLANNED_MFU) / 3600
    return Cost(flops, memory, hours * 60 / task.devices, hours, "gpu", task.devices)


def check_cost(seconds: float, memory: float) -> Cost:
    """Cost of one record of a theory check, as its file states it for full size."""
    return Cost(0.0, memory, seconds / 60, 0.0, "cpu", 1)


def forecast_cost(config: dict[str, Any]) -> Cost:
    """Cost of full-batch descent of a single layer: forward and backward through five matrices, float64."""
    model, numbers = config["model"], config["tokens_per_step"]
    per_number = 6.0 * FORECAST_WIDTH * (2 * model["d_qk"] + FORECAST_WIDTH + 2 * model["hidden"])
    flops = per_number * numbers * config["steps"]
    seconds = flops / CPU_FLOPS + config["steps"] * CPU_STEP_SECONDS
    return Cost(flops, PROCESS_GB + 1.0, seconds / 60, 0.0, "cpu", 1)


def classify_cost(config: dict[str, Any], whole: ModelSpec) -> Cost:
    """Cost of fine-tuning a cut model: its blocks by sentence, its table by step; pretraining is made once."""
    length = min(config["model"]["context"], SENTENCE_TOKENS)
    blocks = whole.model_copy(update={"n_layer": config["model"]["layers"], "context": length, "vocab": 2})
    sentences = config["steps"] * config["tokens_per_step"]
    table = TABLE_FLOPS * whole.vocab * whole.d_model * config["steps"]
    flops = flops_per_token(blocks) * sentences * length + table
    passes = config["steps"] * -(-config["tokens_per_step"] // config["micro_batch"])
    seconds = flops / (CPU_FLOPS * config["threads"]) + passes * CPU_STEP_SECONDS
    pretraining = config["pretrained"].get("run")
    memory = memory_gb(whole, pretraining["micro_batch"] if pretraining else config["micro_batch"], "cpu")
    return Cost(flops, memory, seconds / 60, 0.0, "cpu", 1)


FLOW_LAYER_SECONDS = 2.5e-4  # forward and backward of one layer of small heads, measured


def flow_cost(config: dict[str, Any]) -> Cost:
    """Cost of one mean-field flow: its layers are too small for FLOPs to tell the time."""
    model = config["model"]
    seconds = config["steps"] * (0.002 + FLOW_LAYER_SECONDS * model["layers"])
    return Cost(0.0, PROCESS_GB + 1.0, seconds / 60, 0.0, "cpu", 1)
