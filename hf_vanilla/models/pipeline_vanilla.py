"""`pipeline("translation")`, which transformers 5 has no more, with the arguments and the results of transformers 4."""

from types import GeneratorType
from typing import Any

from torch import Tensor
from transformers import Pipeline


class TranslationPipeline(Pipeline):
    """
    Texts to texts: a text gives `[{"translation_text": ...}]`, a list of texts one such dictionary for each of them, a
    generator an iterator of lists. With `num_return_sequences` there are as many dictionaries for each text.

    All arguments that are not listed here are given to `generate()`.

    Args:
        return_tensors: Return `{"translation_token_ids": ...}` in place of texts.
        truncation: As the tokenizer takes it: `True` cuts sources at its `model_max_length`.
        clean_up_tokenization_spaces: As the tokenizer's `decode` takes it.
        batch_size: How many texts to translate at once, 1 unless given.
    """

    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError("TranslationPipeline needs a tokenizer: TranslationPipeline(model, tokenizer)")
        columns = self.tokenizer.init_kwargs.get("columns") or {}
        separators = [*columns.get("source", [None]), columns.get("target")]
        if len(separators) > 2 or any(separators) or any(self.tokenizer.init_kwargs.get("prefixes", [])):
            raise ValueError(
                "this model was trained on several columns, symbols or prefixes, which a pipeline cannot put together: "
                "use `Translator.from_pretrained` of hf_vanilla"
            )

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, list) and not inputs:
            return []
        results = super().__call__(inputs, *args, **kwargs)
        if isinstance(inputs, GeneratorType):
            return (found for found in results)  # what it is now has no `next`, and begins anew with each `iter`
        if isinstance(inputs, list) and all(len(found) == 1 for found in results):
            return [found[0] for found in results]
        return results

    def _sanitize_parameters(
        self,
        return_tensors: bool | None = None,
        truncation: bool | str | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generation: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        after = {"return_tensors": return_tensors, "clean_up_tokenization_spaces": clean_up_tokenization_spaces}
        before = {} if truncation is None else {"truncation": truncation}
        return before, generation, {name: value for name, value in after.items() if value is not None}

    def preprocess(self, text: str, truncation: bool | str = False) -> dict[str, Tensor]:
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.80} is not a text: give a string, a list of strings or a generator of strings")
        return dict(self.tokenizer(text, truncation=truncation, return_tensors="pt", return_token_type_ids=False))

    def _forward(self, inputs: dict[str, Tensor], **generation: Any) -> dict[str, Tensor]:
        found = self.model.generate(**inputs, **generation)
        found = found if isinstance(found, Tensor) else found.sequences
        return {"found": found.unflatten(0, (len(inputs["input_ids"]), -1))}  # (B * results, T) -> (B, results, T)

    def postprocess(
        self,
        outputs: dict[str, Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, Any]]:
        if return_tensors:
            return [{"translation_token_ids": ids} for ids in outputs["found"][0]]
        return [
            {"translation_text": text}
            for text in self.tokenizer.batch_decode(
                outputs["found"][0],
                skip_special_tokens=True,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            )
        ]


__all__ = ["TranslationPipeline"]
