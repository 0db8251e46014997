"""PyTorch: the generators that a script draws from unless it makes its own."""

import torch

from worker.data import randomness


def seed_generators(seed: int) -> None:
    """Seed the generators of PyTorch, Python and NumPy.

    Their states are set directly: `torch.manual_seed` takes a hundred times as long.

    Args:
        seed: From 0 to 2^63 - 1; PyTorch's generator of the CPU and NumPy's use its lowest 32 bits.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            generator.manual_seed(seed)
    randomness.seed_generators(seed)
