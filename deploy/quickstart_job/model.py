"""A small character transformer: six blocks of width 384, 10.7 million parameters."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        query, key, value = self.attention(self.norm_attention(x)).view(
            batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1)) * (width // self.heads) ** -0.5 + mask
        mixed = (weights.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.projection(mixed)
        return x + self.mlp_out(functional.gelu(self.mlp_in(self.norm_mlp(x))))


class CharacterModel(nn.Module):
    def __init__(self, alphabet, width=384, layers=6, heads=6, context=64):
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)
        self.register_buffer("mask", torch.full((context, context), float("-inf")).triu(1), persistent=False)
        self.apply(self._initialize)

    @staticmethod
    def _initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token(tokens) + self.position.weight[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.head(self.norm(x))
