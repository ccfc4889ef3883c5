"""Random numbers by counting: Threefry 2x32 in integer operations of PyTorch, as JAX has it.

The numbers are a function of a key and a counter and of nothing else, so a loop may make them as it goes or
read them from a tensor that was filled before, with the same bits; and a captured function needs no state for
them. Words are int32 tensors (PyTorch has no arithmetic on unsigned words): the bits are those of uint32.

John K. Salmon, Mark A. Moraes, Ron O. Dror, David E. Shaw: Parallel random numbers: as easy as 1, 2, 3
(SC11).
"""

from __future__ import annotations

import torch

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
ROUNDS = 5
"""Groups of four rounds."""

Word = torch.Tensor | int


def threefry2x32(
    key: tuple[Word, Word], counter: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two words of random bits for each pair of counters, int32 like the counters; 20 rounds, as
    `jax.random` computes them. Key words are int32 tensors or numbers below 2^32."""
    first, second = (_signed(word) for word in key)
    keys = (first, second, first ^ second ^ PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(ROUNDS):
        for bits in ROTATIONS[group % 2]:
            x = x + y
            y = _rotated(y, bits) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def uniform(bits: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """Float32 numbers in [low, high) from words of random bits: the upper 23 bits, as `jax.random.uniform`
    takes them."""
    unit = ((bits >> 9) & 0x7FFFFF).to(torch.float32) * 2.0**-23
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def _rotated(word: torch.Tensor, bits: int) -> torch.Tensor:
    """A word rotated to the left; what comes in on the right is masked, since shifts keep the sign."""
    return (word << bits) | ((word >> (32 - bits)) & ((1 << bits) - 1))


def _signed(word: Word) -> Word:
    """The number whose int32 bits are those of a number below 2^32."""
    return word if isinstance(word, torch.Tensor) else (int(word) + 2**31) % 2**32 - 2**31
