"""What a user might pick instead, by name, each at its defaults and with its own knobs swept.

A `Peer` makes, for one point, calls of the case's own inputs: the first one is its defaults, the others are
settings of the same library, likeliest first. The harness checks each against float64, times the defaults,
and within a budget finds the best correct setting and times that as well. A library that is not installed is
a row that says so.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.case import Attention, Case, Function, Sizes, Tensors

Call = Callable[..., object]
Setting = tuple[str, Call]
Settings = Iterator[Setting]
NATURAL, LOG2E = math.e, 1.4426950408889634


class NotInstalled(Exception):
    """A library is not here."""


@dataclass(frozen=True)
class Peer:
    """An implementation by its name; `settings` yields (what is set, a call), the defaults first."""

    name: str
    settings: Callable[[], Settings]


def peers_of(case: Case, sizes: Sizes, target: str, effort: str) -> list[Peer]:
    """The peers of a case besides eager: `quick` ones compile little, `full` ones are all there are."""
    if effort == "none":
        return []
    full = effort == "full"
    found = [Peer("torch.compile", lambda: iter([("", _inductor(case.function))]))]
    if full:
        mode = "max-autotune-no-cudagraphs"
        found.append(Peer("max-autotune", lambda: iter([("", _inductor(case.function, mode))])))
    found += [Peer(name, lambda f=f: iter([("", f)])) for name, f in case.peers.items()]
    if case.attention is not None:
        found += attention_peers(case.attention, sizes, target, full)
    if full and target == "cuda":
        from benchmarks.peers_jax import jax_peer

        found += jax_peer(case)
    return found


def settings_in_turn(settings: Settings, winners: Sequence[str]) -> list[Setting]:
    """A peer's settings, those that won at earlier points first, the latest of them before the others: a
    sweep that is cut should have tried them. What raises while it is made ends the list."""
    known: list[Setting] = []
    with suppress(Exception):
        known.extend(settings)
    places = {setting: place for place, setting in reversed(list(enumerate(winners)))}
    return sorted(known, key=lambda s: places.get(s[0], len(winners)))


def _inductor(function: Function, mode: str | None = None) -> Call:
    return torch.compile(function, dynamic=False, mode=mode)


# ---------------------------------------------------------------- attention


def attention_peers(how: Attention, sizes: Sizes, target: str, full: bool) -> list[Peer]:
    """Libraries that know attention: SDPA by backend, FlexAttention, FA3, FlashInfer."""
    if how.prologue:
        how = replace(how, arrange=torch.compile(how.arrange, dynamic=False))
    if target == "cpu":
        return [Peer("sdpa", lambda: sdpa(how, sizes, None))]
    names = ("flash", "cudnn", "efficient")
    found = [Peer(f"sdpa-{name}", lambda name=name: sdpa(how, sizes, name)) for name in names]
    found.append(Peer("fa3", lambda: fa3(how, sizes)))
    found.append(Peer("flashinfer", lambda: _flashinfer(how, sizes)))
    if full:
        found.append(Peer("flex", lambda: flex(how, sizes)))
    return found


def _flashinfer(how: Attention, sizes: Sizes) -> Settings:
    from benchmarks.peers_flashinfer import flashinfer

    return flashinfer(how, sizes)


def folds(how: Attention, q: torch.Tensor, k: torch.Tensor) -> dict[str, Callable[[Tensors], Tensors]]:
    """Ways to give a library the same attention: as it is, key heads folded into the batch, and, where no
    mask tells queries apart, the query heads of one key head folded into rows."""
    ways: dict[str, Callable[[Tensors], Tensors]] = {"": lambda t: t}
    heads, kv, rows = q.shape[1], k.shape[1], q.shape[2]

    def batch(t: Tensors) -> Tensors:
        return tuple(x.reshape(x.shape[0] * kv, -1, *x.shape[2:]) for x in t)

    def packed(t: Tensors) -> Tensors:
        query, *others = batch(t)
        return (query.reshape(query.shape[0], 1, -1, query.shape[-1]), *others)

    if kv > 1:
        ways["heads as batch"] = batch
    windowed = 0 < how.window < k.shape[2]
    if heads > kv and not windowed and (not how.causal or rows == 1) and how.sinks is None:
        ways["query heads as rows"] = packed
    return ways


def _masked(how: Attention, rows: int, keys: int, device: torch.device) -> dict[str, object]:
    """The mask as SDPA takes it."""
    if how.window and how.window < keys:
        i = torch.arange(rows, device=device)[:, None] + (keys - rows)
        j = torch.arange(keys, device=device)[None, :]
        return {"attn_mask": (j <= i) & (i - j < how.window)}
    if not how.causal or rows == 1:
        return {}
    if rows == keys:
        return {"is_causal": True}
    from torch.nn.attention.bias import causal_lower_right

    return {"attn_mask": causal_lower_right(rows, keys)}


def sdpa(how: Attention, sizes: Sizes, backend: str | None) -> Settings:
    """PyTorch's own, by backend (None: what it chooses)."""
    if how.cap or how.sinks is not None:
        raise NotImplementedError("no soft cap or sinks")
    if how.lse:
        yield "", _sdpa_with_lse(how, sizes, backend)
        return
    yield "", _sdpa(how, backend, "")
    for fold in ("heads as batch", "query heads as rows"):
        yield fold, _sdpa(how, backend, fold)


def _sdpa(how: Attention, backend: str | None, fold: str) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    masks: dict[tuple[int, int], dict[str, object]] = {}

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        q, k, v = how.arrange(*inputs)
        shape = (*q.shape[:-1], v.shape[-1])
        key = (q.shape[2], k.shape[2])
        if key not in masks:
            masks[key] = _masked(how, *key, q.device)
        ways = folds(how, q, k)
        if fold not in ways:
            raise NotImplementedError(f"{fold}: not for this shape")
        q, k, v = ways[fold]((q, k, v))
        grouped = q.shape[1] != k.shape[1]
        if backend == "efficient" and grouped:  # it has no groups: keys are repeated as views
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
            grouped = False
        options = {"scale": how.scale, "enable_gqa": grouped, **masks[key]}
        if backend is None:
            out = F.scaled_dot_product_attention(q, k, v, **options)  # pyright: ignore[reportArgumentType]
        else:
            with sdpa_kernel(kinds[backend]):
                out = F.scaled_dot_product_attention(q, k, v, **options)  # pyright: ignore[reportArgumentType]
        return how.restore(out.reshape(shape))

    return call


def _sdpa_with_lse(how: Attention, sizes: Sizes, backend: str | None) -> Call:
    """The operators below SDPA, which give the log-sum-exp as well."""
    if sizes["S"] != sizes["T"] and sizes["S"] > 1:
        raise NotImplementedError("its operators have no bottom-right mask")
    causal = how.causal and sizes["S"] > 1
    ops = torch.ops.aten

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = how.arrange(*inputs)
        if backend == "flash":
            out, lse, *_ = ops._scaled_dot_product_flash_attention(
                q, k, v, 0.0, causal, False, scale=how.scale
            )
        elif backend == "cudnn":
            out, lse, *_ = ops._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, 0.0, causal, False, scale=how.scale
            )
        else:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
            if backend == "efficient":
                out, lse, *_ = ops._scaled_dot_product_efficient_attention(
                    q, k, v, None, True, 0.0, causal, scale=how.scale
                )
            else:
                out, lse = ops._scaled_dot_product_flash_attention_for_cpu(
                    q, k, v, 0.0, causal, scale=how.scale
                )
        return _with_lse(how, out, lse)

    return call


def _with_lse(how: Attention, out: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both outputs as the case has them, from [batch, heads, rows, depth] and a natural logarithm."""
    lse = lse.reshape(lse.shape[0], out.shape[1], -1)[..., : out.shape[2]]
    scaled = lse if how.lse == NATURAL else lse * LOG2E
    return how.restore(out), how.restore(scaled)


# ---------------------------------------------------------------- FA3


def _fa3_wanted(how: Attention, sizes: Sizes, taken: Collection[str]) -> dict[str, object]:
    """The options that make it compute what is wanted, of those that it takes."""
    fixed: dict[str, object] = {}
    if how.scale is not None:
        fixed["softmax_scale"] = how.scale
    if how.sinks is not None:
        raise NotImplementedError("no sinks")
    if how.causal and sizes["S"] > 1:
        fixed["causal"] = True
    if 0 < how.window < sizes["T"]:
        fixed["window_size"] = (how.window - 1, 0)
    if how.cap:
        fixed["softcap"] = how.cap
    if how.lse:
        name = next((n for n in ("return_softmax_lse", "return_attn_probs") if n in taken), None)
        if name is None:
            raise NotImplementedError("no log-sum-exp")
        fixed[name] = True
    return fixed


def fa3(how: Attention, sizes: Sizes) -> Settings:
    """FlashAttention 3 for Hopper: its defaults, then splits, packing and folding."""
    module = module_named("fa3_fwd_interface")
    function = module.flash_attn_func
    taken = inspect.signature(function).parameters
    fixed = _fa3_wanted(how, sizes, taken)

    def latent(**options: object) -> Call:
        def call(*inputs: torch.Tensor) -> object:
            q, kv, q_rope, k_rope = inputs
            found = function(
                q_rope[:, None], k_rope[:, :, None], kv[:, :, None], qv=q[:, None], **fixed, **options
            )
            return (found[0] if isinstance(found, tuple) else found)[:, 0]

        return call

    def made(fold: str, **options: object) -> Call:
        if how.latent:
            return latent(**options)

        def call(*inputs: torch.Tensor) -> object:
            q, k, v = how.arrange(*inputs)
            shape = (*q.shape[:-1], v.shape[-1])
            ways = folds(how, q, k)
            if fold not in ways:
                raise NotImplementedError(f"{fold}: not for this shape")
            folded = ways[fold]((q, k, v))
            found = function(*(x.transpose(1, 2) for x in folded), **fixed, **options)
            out, *rest = found if isinstance(found, tuple) else (found,)
            out = out.transpose(1, 2).reshape(shape)
            return _with_lse(how, out, rest[0].reshape(shape[:3])) if how.lse else how.restore(out)

        return call

    yield "", made("")
    splits = (0, 1, 2, 4, 8, 16, 32, 3, 6, 12, 24) if "num_splits" in taken else (None,)
    packs = (None, True, False) if "pack_gqa" in taken else (None,)
    for fold, count, pack in itertools.product(("", "query heads as rows", "heads as batch"), splits, packs):
        if fold and (how.latent or pack is not None or sizes.get("KV", sizes.get("H")) == 1):
            continue
        options = {k: v for k, v in (("num_splits", count), ("pack_gqa", pack)) if v is not None}
        yield " ".join([fold, *(f"{k}={v}" for k, v in options.items())]).strip(), made(fold, **options)


# ---------------------------------------------------------------- FlexAttention


def flex(how: Attention, sizes: Sizes) -> Settings:
    """FlexAttention, compiled; masks are made before the clock runs; sinks by way of the log-sum-exp."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, keys = sizes.get("S", 1), sizes["T"]

    def seen(b: object, h: object, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        kept = j <= i + (keys - rows)
        return kept & (i + (keys - rows) - j < how.window) if how.window else kept

    def capped(score: torch.Tensor, *_: object) -> torch.Tensor:
        return how.cap * torch.tanh(score / how.cap)

    masked = how.causal and (rows > 1 or 0 < how.window < keys)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mask = create_block_mask(seen, None, None, rows, keys, device=device) if masked else None  # pyright: ignore[reportArgumentType]
    needs_lse = bool(how.lse) or how.sinks is not None

    def made(options: dict[str, int]) -> Call:
        compiled: Any = torch.compile(flex_attention, dynamic=False)

        def call(*inputs: torch.Tensor) -> object:
            q, k, v = how.arrange(*inputs)
            found = compiled(
                q, k, v,
                score_mod=capped if how.cap else None,
                block_mask=mask,
                scale=how.scale,
                enable_gqa=q.shape[1] != k.shape[1],
                return_lse=needs_lse,
                kernel_options=options or None,
            )  # fmt: skip
            if not needs_lse:
                return how.restore(found)
            out, lse = found
            if how.sinks is not None:
                sink = inputs[how.sinks].float()[None, :, None]
                return how.restore(out * torch.sigmoid(lse - sink)[..., None].to(out.dtype))
            return _with_lse(how, out, lse)

        return call

    yield "", made({})
    for options in flex_options(rows):
        yield " ".join(f"{k}={v}" for k, v in options.items()), made(options)


def flex_options(rows: int) -> Iterator[dict[str, int]]:
    """FlexAttention's kernel options, unlike ones first: each is a compile of seconds, and a sweep tries few.
    One row of queries has a kernel of its own, whose knob is in how many parts the keys are cut."""
    if rows == 1:
        names = ("BLOCK_N", "SPLIT_KV", "num_warps", "num_stages")
        first = [(64, 16, 4, 3), (128, 32, 4, 2), (64, 64, 4, 3), (32, 32, 2, 3)]
        rest = itertools.product((64, 128, 32), (8, 16, 32, 64), (4, 8, 2), (3, 2))
    else:
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        first = [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 2), (64, 32, 4, 4)]
        shapes = ((128, 64), (128, 128), (64, 64), (64, 32), (128, 32), (64, 128))
        rest = ((m, n, w, s) for (m, n), w, s in itertools.product(shapes, (4, 8), (2, 3, 4)))
    for values in dict.fromkeys([*first, *rest]):
        yield dict(zip(names, values, strict=True))


def module_named(name: str) -> Any:
    """A module that may be missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalled(f"{name} is not installed") from error
