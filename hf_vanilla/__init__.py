"""The Transformer of "Attention Is All You Need" for Hugging Face. Importing it registers the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .models.configuration_vanilla import VanillaConfig
from .models.modeling_vanilla import VanillaForConditionalGeneration, VanillaModel, VanillaPreTrainedModel
from .version import __version__

AutoConfig.register(VanillaConfig.model_type, VanillaConfig)
AutoModel.register(VanillaConfig, VanillaModel)
AutoModelForSeq2SeqLM.register(VanillaConfig, VanillaForConditionalGeneration)

# From here on `save_pretrained` puts the code beside the weights, for those who load them without this package.
VanillaConfig.register_for_auto_class()
VanillaModel.register_for_auto_class("AutoModel")
VanillaForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")

__all__ = [
    "VanillaConfig",
    "VanillaForConditionalGeneration",
    "VanillaModel",
    "VanillaPreTrainedModel",
    "__version__",
]
