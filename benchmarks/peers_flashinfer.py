"""FlashInfer as a peer: its calls for one request, for a batch of decodes over pages, and for MLA decoding.

What a serving engine does once a step or once a cache, planning and laying keys out in pages, is done before
the clock runs, once for each input set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.case import Attention, Sizes
from benchmarks.peers import LOG2E, NATURAL, Call, Settings, module_named

PAGE = 16
WORKSPACE_BYTES = 256 << 20


def flashinfer(how: Attention, sizes: Sizes) -> Settings:
    """What of FlashInfer computes the case, its defaults first."""
    module = module_named("flashinfer")
    if how.sinks is not None:
        raise NotImplementedError("no sinks in these calls")
    left = how.window - 1 if how.window and how.window < sizes["T"] else -1
    options = {"sm_scale": how.scale, "window_left": left, "logits_soft_cap": how.cap or None}
    if how.latent:
        yield from _latent(module, how, sizes)
    elif sizes.get("S") == 1 and not how.lse:
        if sizes.get("B", 1) == 1:
            for name, extra in (("", {}), ("use_tensor_cores=True", {"use_tensor_cores": True})):
                yield name, _one_decode(module, how, {**options, **extra})
        for cores in () if how.prologue else (False, True):  # what is kept must not be computed
            yield f"paged batch use_tensor_cores={cores}", _batch_decode(module, how, sizes, options, cores)
    elif sizes.get("B", 1) == 1:
        for name, extra in (
            ("", {}),
            ("backend=fa3", {"backend": "fa3"}),
            ("backend=fa2", {"backend": "fa2"}),
        ):
            yield name, _one_prefill(module, how, {**options, **extra})
    else:
        raise NotImplementedError("batches of prefills are not run here")


def _one_prefill(module: Any, how: Attention, options: dict[str, Any]) -> Call:
    def call(*inputs: torch.Tensor) -> object:
        q, k, v = (x[0].transpose(0, 1) for x in how.arrange(*inputs))
        found = module.single_prefill_with_kv_cache(
            q, k, v, causal=how.causal, return_lse=bool(how.lse), **options
        )
        if not how.lse:
            return how.restore(found.transpose(0, 1)[None])
        out, lse = found  # in base 2
        lse = lse.transpose(0, 1)[None]
        scaled = lse / LOG2E if how.lse == NATURAL else lse
        return how.restore(out.transpose(0, 1)[None]), how.restore(scaled)

    return call


def _one_decode(module: Any, how: Attention, options: dict[str, Any]) -> Call:
    def call(*inputs: torch.Tensor) -> object:
        q, k, v = how.arrange(*inputs)
        keys, values = k[0].transpose(0, 1), v[0].transpose(0, 1)
        out = module.single_decode_with_kv_cache(q[0, :, 0], keys, values, **options)
        return how.restore(out[None, :, None])

    return call


def _batch_decode(module: Any, how: Attention, sizes: Sizes, options: dict[str, Any], cores: bool) -> Call:
    """Keys in pages, as serving engines hold them: copied there once for each input set."""
    batch, keys = sizes.get("B", 1), sizes["T"]
    if keys % PAGE:
        raise NotImplementedError(f"{keys} keys are no whole pages")

    def planned(q: torch.Tensor, k: torch.Tensor) -> Any:
        space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=cores)
        pages = keys // PAGE
        whole = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * pages
        wrapper.plan(
            whole,
            torch.arange(batch * pages, dtype=torch.int32, device=q.device),
            torch.full((batch,), PAGE, dtype=torch.int32, device=q.device),
            q.shape[1], k.shape[1], q.shape[3], PAGE,
            q_data_type=q.dtype, kv_data_type=k.dtype, **options,
        )  # fmt: skip
        return wrapper

    def paged(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).reshape(-1, PAGE, x.shape[1], x.shape[3])

    kept = _Kept(lambda q, k, v: (planned(q, k), (paged(k), paged(v))))

    def call(*inputs: torch.Tensor) -> object:
        q, k, v = how.arrange(*inputs)
        wrapper, cache = kept.of(inputs, q, k, v)
        return how.restore(wrapper.run(q[:, :, 0], cache)[:, :, None])

    return call


def _latent(module: Any, how: Attention, sizes: Sizes) -> Settings:
    """MLA decoding takes the four inputs as they are."""
    page = 64 if sizes["T"] % 64 == 0 else 1

    def made(backend: str) -> Call:
        def planned(q: torch.Tensor, kv: torch.Tensor, q_rope: torch.Tensor) -> Any:
            space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
            wrapper = module.mla.BatchMLAPagedAttentionWrapper(space, backend=backend)
            batch, keys = kv.shape[0], kv.shape[1]
            each = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
            wrapper.plan(
                each,
                each * (keys // page),
                torch.arange(batch * (keys // page), dtype=torch.int32, device=q.device),
                torch.full((batch,), keys, dtype=torch.int32, device=q.device),
                q.shape[1], q.shape[2], q_rope.shape[2], page, False, how.scale, q.dtype, kv.dtype,
            )  # fmt: skip
            return wrapper

        kept = _Kept(planned)

        def call(*inputs: torch.Tensor) -> object:
            q, kv, q_rope, k_rope = inputs
            wrapper = kept.of(inputs, q, kv, q_rope)
            return wrapper.run(q, q_rope, *(x.reshape(-1, page, x.shape[-1]) for x in (kv, k_rope)))

        return call

    for backend in ("auto", "fa3", "fa2"):
        yield "" if backend == "auto" else f"backend={backend}", made(backend)


class _Kept:
    """What is made once for each input set."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.made: dict[tuple[int, ...], tuple[tuple[torch.Tensor, ...], Any]] = {}

    def of(self, inputs: tuple[torch.Tensor, ...], *given: torch.Tensor) -> Any:
        key = tuple(t.data_ptr() for t in inputs)
        if key not in self.made:  # the inputs are kept as well, so that no other has their place
            self.made[key] = (inputs, self.make(*given))
        return self.made[key][1]
