"""The Transformer of "Attention Is All You Need" for Hugging Face. Importing it registers the Auto classes."""

from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .models.configuration_vanilla import VanillaConfig
from .models.modeling_vanilla import VanillaForConditionalGeneration, VanillaModel, VanillaPreTrainedModel
from .version import __version__

if TYPE_CHECKING:
    from .inference.translator import Translator

AutoConfig.register(VanillaConfig.model_type, VanillaConfig)
AutoModel.register(VanillaConfig, VanillaModel)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration)

# From here on `save_pretrained` puts the code beside the weights, for those who load them without this package.
VanillaConfig.register_for_auto_class()
VanillaModel.register_for_auto_class("AutoModel")
VanillaForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "Translator",
    "VanillaConfig",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "VanillaPreTrainedModel",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """`Translator` is imported when it is asked for: most who import this package only want the Auto classes."""
    if name == "Translator":
        from .inference.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
