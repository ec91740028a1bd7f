"""
The private names of other packages that this one uses or overrides, and what would break without each.

A private name may be renamed in any release. To read one that is gone is an error, but a method that overrides one that
is gone is never called again, without a word. So each module that needs some asks for them when it is imported.

The files in `models` cannot ask, as they also travel alone to the Hub: they override nothing but `HOOKS`, and can do
without oneDNN's operators, which not every build of PyTorch has.
"""

from importlib import metadata
from pkgutil import resolve_name
from typing import NamedTuple

OFFICIAL = "transformers documents it for those who write models"
PIPELINES = "transformers documents it for those who write pipelines"
EVALUATE = "evaluate documents it for those who write metrics"

# Private by their spelling only: what a model or a metric is asked to define.
HOOKS = {
    "_init_weights": OFFICIAL,
    "_no_split_modules": OFFICIAL,
    "_skip_keys_device_placement": OFFICIAL,
    "_tied_weights_keys": OFFICIAL,
    "_tp_plan": OFFICIAL,
    "_fsdp_plan": OFFICIAL,
    "_supports_sdpa": OFFICIAL,
    "_supports_flash_attn": OFFICIAL,
    "_supports_flex_attn": OFFICIAL,
    "_can_compile_fullgraph": OFFICIAL,
    "_can_record_outputs": OFFICIAL,
    "_attn_implementation": OFFICIAL,
    "_load_tokenizer": PIPELINES,
    "_sanitize_parameters": PIPELINES,
    "_forward": PIPELINES,
    "_info": EVALUATE,
    "_compute": EVALUATE,
}


class PrivateName(NamedTuple):
    """A name of an object, given as `package:object`, that one of our modules uses."""

    user: str
    owner: str
    name: str
    breaks: str


TRAINER = "hf_vanilla.training.trainer"
KERNELS, GUARD = "hf_vanilla.models.kernels_vanilla", "hf_vanilla.models.guard_vanilla"
METRICS = "hf_vanilla.evaluation.metrics"
PEAK, ATEN, MKLDNN = "hf_vanilla.benchmark.peak", "torch:ops.aten", "torch:ops.mkldnn"
NO_COUNT = "attention on CPUs would be missing from the operations that are counted"
SLOWER = "products with weights in oneDNN's order would be off: generation would be slower"
NO_SCORES = "BLEU, chrF and TER would have no confidence intervals"
HOOKED = "a model with hooks could not be told from one without"

PRIVATE_NAMES = (
    PrivateName(
        TRAINER, "transformers:Trainer", "_save_checkpoint", "a checkpoint would have its name before it is complete"
    ),
    PrivateName(TRAINER, "transformers:Trainer", "_get_output_dir", "checkpoints would be written where they are read"),
    PrivateName(TRAINER, "transformers:Trainer", "_save", "checkpoints of FSDP2 would not load into the model"),
    PrivateName(
        TRAINER, "transformers:Trainer", "_run_epoch", "a training that goes on would take other steps, or one too many"
    ),
    PrivateName(
        TRAINER,
        "transformers:Trainer",
        "_issue_warnings_after_load",
        "a training that goes on would warn of missing weights, which are shared ones",
    ),
    PrivateName(
        "hf_vanilla.precision",
        "torch:cpu",
        "_is_avx512_bf16_supported",
        "nothing would say whether bfloat16 is fast on this CPU",
    ),
    PrivateName(PEAK, ATEN, "_scaled_dot_product_flash_attention_for_cpu", NO_COUNT),
    PrivateName(PEAK, ATEN, "_scaled_dot_product_flash_attention_for_cpu_backward", NO_COUNT),
    PrivateName(KERNELS, MKLDNN, "_reorder_linear_weight", SLOWER),
    PrivateName(KERNELS, MKLDNN, "_linear_pointwise", SLOWER),
    *(
        PrivateName(KERNELS, "torch.nn:Module", name, HOOKED)
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    ),
    PrivateName(GUARD, "torch.nn:Module", "_forward_hooks", HOOKED),
    PrivateName(GUARD, "torch.nn:Module", "_forward_pre_hooks", HOOKED),
    PrivateName(METRICS, "sacrebleu.metrics.base:Metric", "_extract_corpus_statistics", NO_SCORES),
    PrivateName(METRICS, "sacrebleu.metrics.base:Metric", "_compute_score_from_stats", NO_SCORES),
)


class MissingNameError(ImportError):
    """An installed package has no longer what this one builds on. The message says what would break."""


def require_private_names(user: str) -> None:
    """Raise an error if a private name that a module needs is gone."""
    for entry in PRIVATE_NAMES:
        if entry.user == user and not is_there(entry):
            package = entry.owner.partition(":")[0].partition(".")[0]
            raise MissingNameError(
                f"{package} {metadata.version(package)} has no {entry.owner.replace(':', '.')}.{entry.name}, and "
                f"without it {entry.breaks}: install the versions that hf_vanilla was tested with (see its README)"
            )


def is_there(entry: PrivateName) -> bool:
    try:
        owner = resolve_name(entry.owner)
    except (ImportError, AttributeError):
        return False
    # What the instances of a class get when they are made is only declared in the class.
    return hasattr(owner, entry.name) or entry.name in getattr(owner, "__annotations__", {})
