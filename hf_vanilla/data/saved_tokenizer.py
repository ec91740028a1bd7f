"""The tokenizer class whose files every version of transformers reads."""

from typing import Any

import transformers

OF_THE_LAST_LOADING = ("is_local", "local_files_only")  # transformers keeps these among the settings


class PreTrainedTokenizerFast(transformers.PreTrainedTokenizerFast):
    """
    transformers' own class, but saved under this name.

    transformers 5 writes the name that it has given to this class, TokenizersBackend, which transformers 4 does not
    know: loading would fail there. There must be no `__init__`: transformers takes a tokenizer that has one apart when
    it loads it, and its decoder gets lost.

    The files do not depend on where it was loaded from or how the last texts were padded.
    """

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        for name in OF_THE_LAST_LOADING:
            self.init_kwargs.pop(name, None)
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        return super().save_pretrained(*args, **kwargs)
