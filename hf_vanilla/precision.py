"""Which floating-point numbers a device computes with at full speed."""

import torch

from .private_names import require_private_names

require_private_names(__name__)


def bfloat16_is_fast(use_cpu: bool) -> bool:
    """Whether the device has instructions for bfloat16. On others than CPUs and CUDA it is off by default."""
    if use_cpu:
        return bool(torch.cpu._is_avx512_bf16_supported())
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
