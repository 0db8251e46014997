"""A small causal transformer that predicts the next byte of a text.

Source: the architecture of GPT-2 (Radford, Wu, Child, Luan, Amodei and Sutskever, *Language Models are
Unsupervised Multitask Learners*, 2019): layer normalisation before each block and after the last, GELU,
learned positions, and an output layer that shares the embedding's weights. Dropout is off by default:
without micro-batches workers draw different units, so that how a batch is split matters.
"""

import torch
from torch import nn


class ByteTransformer(nn.Module):
    """Causal transformer: bytes (samples, length) in, the next byte's logits (samples, length, 256) out.

    Args:
        context: The most bytes that it can look back on, and the longest length.
        heads: Heads of attention in each layer.
        dropout: Probability of dropout, in attention and after each part of a layer.

    Raises:
        ValueError: The heads do not share the width evenly.
    """

    BYTES = 256

    def __init__(
        self, context: int = 64, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width}: must be a multiple of the {heads} heads")
        self.embedding = nn.Embedding(self.BYTES, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return each position's logits, from the bytes up to there, (samples, length, 256)."""
        length = text.shape[1]
        states = self.embedding(text) + self.positions[:length]
        states = self.layers(states, mask=self.get_buffer("mask")[:length, :length], is_causal=True)
        return nn.functional.linear(states, self.embedding.weight)
