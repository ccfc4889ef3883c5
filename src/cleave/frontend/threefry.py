"""Random numbers by counting: Threefry 2x32 in integer operations of PyTorch, as JAX has it.

The numbers are a function of a key and a counter and of nothing else, so a loop may make them as it goes or
read them from a tensor that was filled before, with the same bits; and a captured function needs no state for
them. Words are int32 tensors (PyTorch has no arithmetic on unsigned words): the bits are those of uint32.

John K. Salmon, Mark A. Moraes, Ron O. Dror, David E. Shaw: Parallel random numbers: as easy as 1, 2, 3
(SC11).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cleave.errors import CallError
from cleave.frontend.calls import checked_call, shown
from cleave.frontend.trace import users_line

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
ROUNDS = 5
"""Groups of four rounds."""

BOUNDS = "uniform(bits, -1.0, 1.0)"

Word = torch.Tensor | int


@checked_call("cleave.threefry2x32", "cleave.threefry2x32((0, 42), (counter, counter))")
def threefry2x32(
    key: tuple[Word, Word], counter: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two words of random bits for each pair of counters, int32 like the counters; 20 rounds, as
    `jax.random` computes them. Key words are int32 tensors or numbers below 2^32. `CallError` for others."""
    for what, words in (("key", key), ("counter", counter)):
        if not isinstance(words, tuple | list | torch.Tensor) or len(words) != 2:
            raise _wrong(f"the {what} of threefry2x32 is a pair of words, not {shown(words)}")
        for word in words:
            _check_word(word, f"a {what} word of threefry2x32", number=what == "key")
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


@checked_call("cleave.uniform", "cleave.uniform(bits, -1.0, 1.0)")
def uniform(bits: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """Float32 numbers in [low, high) from words of random bits: the upper 23 bits, as `jax.random.uniform`
    takes them. `CallError` for what are no words, and for bounds that are no finite numbers in order."""
    _check_word(bits, "bits of uniform", number=False)
    known = (int, float, np.number, torch.SymInt, torch.SymFloat)
    if not all(isinstance(n, known) or (isinstance(n, torch.Tensor) and n.dim() == 0) for n in (low, high)):
        raise _wrong(f"the bounds of uniform are numbers, not {shown(low)} and {shown(high)}", BOUNDS)
    bounds = not isinstance(low, torch.Tensor) and not isinstance(high, torch.Tensor)
    if bounds and not -math.inf < low <= high < math.inf:
        what = f"uniform in [{low}, {high}) has no numbers to draw: low is not above high, both are finite"
        raise _wrong(what, BOUNDS)
    unit = ((bits >> 9) & 0x7FFFFF).to(torch.float32) * 2.0**-23
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def _check_word(word: object, what: str, *, number: bool) -> None:
    """`CallError` for what is no int32 tensor nor, where one may stand, a number of 32 bits."""
    if isinstance(word, torch.Tensor):
        if word.dtype != torch.int32:
            raise _wrong(f"{what} is a tensor of {word.dtype}, and words are int32")
    elif not number or isinstance(word, bool) or not isinstance(word, int | np.integer | torch.SymInt):
        raise _wrong(f"{what} is {shown(word)}, and words are int32 tensors{' or numbers' * number}")
    elif not -(2**31) <= word < 2**32:
        raise _wrong(f"{what} is {shown(word)}, and words have 32 bits")


def _wrong(what: str, hint: str = "x.to(torch.int32) makes words of whole numbers") -> CallError:
    return CallError(what, where=users_line(), hint=hint)


def _rotated(word: torch.Tensor, bits: int) -> torch.Tensor:
    """A word rotated to the left; what comes in on the right is masked, since shifts keep the sign."""
    return (word << bits) | ((word >> (32 - bits)) & ((1 << bits) - 1))


def _signed(word: Word) -> Word:
    """The number whose int32 bits are those of a number below 2^32."""
    return word if isinstance(word, torch.Tensor) else (int(word) + 2**31) % 2**32 - 2**31
