"""
The model. All files here are copied beside saved weights, so that these load where this package is not installed.

The paper:
- configuration_vanilla.py   sizes and switches, with the sections that they come from
- modeling_vanilla.py        sections 3 and 5.4, from the inside out
- generation_vanilla.py      the search of section 6.1, inside `generate()`
- pipeline_vanilla.py        `pipeline("translation")`

Speed, with the same results; the model is complete without these:
- loss_vanilla.py            output projection and cross-entropy, some logits at a time
- guard_vanilla.py           when our own search may run in place of transformers'
- search_vanilla.py          greedy and beam search
- decoding_vanilla.py        the decoder, one token at a time
- kernels_vanilla.py         linear layers and attention on CPUs
"""
