"""The static suite: shapes that models run (rows B1 to B19, B22 and B23 of the list in docs/benchmarks.md).

The paper's nine subgraphs (B1 to B10) are here at their smallest and largest sizes; `cleave bench paper` has
all of them. On the CPU the same functions run at sizes that two cores finish in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks import functions as f
from benchmarks.case import Attention, Case, Function, Sizes

Points = dict[tuple[str, str], list[Sizes]]

QKV = {"q": ("B", "H", "S", "D"), "k": ("B", "KV", "T", "D"), "v": ("B", "KV", "T", "D")}
PLAIN = Attention(lambda q, k, v, *_: (q, k, v), lambda out: out)
CAUSAL = replace(PLAIN, causal=True)


def _lengths(base: Sizes, lengths: Sequence[int]) -> list[Sizes]:
    """As many queries as keys."""
    return [{**base, "S": n, "T": n} for n in lengths]


def _requests(base: Sizes, points: Sequence[tuple[int, int]]) -> list[Sizes]:
    """One query a request: (requests, keys)."""
    return [{**base, "S": 1, "B": b, "T": t} for b, t in points]


def _seen(sizes: Sizes, causal: bool, window: int) -> float:
    """Pairs of a query and a key that it sees, of one head."""
    rows, keys = sizes["S"], sizes["T"]
    if not causal:
        return float(rows * keys)
    return float(sum(min(i + 1 + keys - rows, window or keys) for i in range(rows)))


def _attention(
    row: str,
    name: str,
    function: Function,
    points: Points,
    how: Attention,
    more: Mapping[str, Sequence[str]] | None = None,
) -> Case:
    def flops(s: Sizes) -> float:
        return 4.0 * s["B"] * s["H"] * s["D"] * _seen(s, how.causal, how.window)

    def moved(s: Sizes, width: int) -> float:
        keys = min(s["T"], s["S"] + how.window) if how.window else s["T"]
        rows = 2 * s["B"] * s["H"] * s["S"] * s["D"]
        return width * (rows + 2 * s["B"] * s["KV"] * keys * s["D"])

    return Case(
        name=name,
        function=function,
        inputs={**QKV, **(more or {})},
        dynamic=("B", "S", "T"),
        points=points,
        flops=flops,
        bytes=moved,
        row=row,
        attention=how,
        independent=("H", "KV"),
        joined=1,
    )


def _serving(depth: int = 128) -> Sizes:
    return {"B": 1, "H": 32, "KV": 8, "D": depth}


def _small(depth: int = 64) -> Sizes:
    return {"B": 1, "H": 8, "KV": 2, "D": depth}


def _spread(base: Sizes, pairs: Sequence[tuple[int, int]]) -> list[Sizes]:
    """(requests, length) of prefills."""
    return [{**base, "B": b, "S": n, "T": n} for b, n in pairs]


def _cpu_lengths(heads: int, groups: int) -> list[Sizes]:
    """The CPU's list: depths 64 and 128, lengths 512 to 4096."""
    base = {"B": 1, "H": heads, "KV": groups}
    return [
        {**base, "D": d, "S": n, "T": n}
        for d, lengths in ((64, (512, 2048, 4096)), (128, (512, 2048)))
        for n in lengths
    ]


def _plain_attention() -> Case:
    decodes = [(1, 4096), (1, 65536), (16, 1024), (16, 8192), (128, 2048)]
    mha = {"B": 1, "H": 32, "KV": 32, "D": 64}
    return _attention(
        "B7",
        "attention",
        f.attention,
        {
            ("cuda", "prefill"): [*_lengths(_serving(), (2048, 4096, 16384)), *_lengths(mha, (4096,))],
            ("cuda", "decode"): _requests(_serving(), decodes),
            ("cpu", "prefill"): _cpu_lengths(8, 2),
            ("cpu", "decode"): [
                *_requests(_small(), [(1, 4096), (4, 1024)]),
                *_requests(_small(128), [(1, 4096)]),
            ],
        },
        PLAIN,
    )


def _causal_attention() -> Case:
    prefills = [(8, 512), (4, 2048), (1, 2048), (1, 4096), (1, 16384)]
    return _attention(
        "B6",
        "causal-attention",
        f.causal_attention,
        {("cuda", "prefill"): _spread(_serving(), prefills), ("cpu", "prefill"): _cpu_lengths(8, 8)},
        CAUSAL,
    )


def _causal_lse() -> Case:
    return _attention(
        "B11",
        "causal-gqa-lse2",
        f.causal_attention_lse,
        {
            ("cuda", "prefill"): [
                *_lengths(_serving(), (512, 1024, 2048, 4096, 8192, 16384)),
                {**_serving(), "S": 1024, "T": 5120},
            ],
            ("cuda", "decode"): _requests(_serving(), [(1, 4096), (16, 4096)]),
            ("cpu", "prefill"): [*_lengths(_small(), (127, 512, 1024)), {**_small(), "S": 64, "T": 1088}],
            ("cpu", "decode"): _requests(_small(), [(1, 4097)]),
        },
        replace(CAUSAL, lse=2.0),
    )


def _softcap_deep() -> Case:
    return _attention(
        "B12",
        "softcap-window-d256",
        f.softcap_attention,
        {
            ("cuda", "prefill"): _lengths({"B": 1, "H": 16, "KV": 8, "D": 256}, (2048, 8192, 16384)),
            ("cuda", "decode"): _requests({"H": 16, "KV": 8, "D": 256}, [(1, 8192), (32, 8192)]),
            ("cpu", "prefill"): _lengths({"B": 1, "H": 4, "KV": 2, "D": 256}, (256, 512)),
            ("cpu", "decode"): _requests({"H": 4, "KV": 2, "D": 256}, [(1, 8192)]),
        },
        replace(CAUSAL, cap=50.0, window=4096),
    )


def _softcap() -> Case:
    return _attention(
        "B12",
        "softcap-window-d128",
        f.softcap_attention,
        {
            ("cuda", "prefill"): _lengths({"B": 1, "H": 32, "KV": 16, "D": 128}, (2048, 8192)),
            ("cuda", "decode"): _requests({"H": 32, "KV": 16, "D": 128}, [(1, 8192), (32, 8192)]),
            ("cpu", "prefill"): _lengths({"B": 1, "H": 4, "KV": 2, "D": 128}, (512,)),
        },
        replace(CAUSAL, cap=50.0, window=4096),
    )


def _sinks() -> Case:
    return _attention(
        "B13",
        "sinks-window",
        f.sink_attention,
        {
            ("cuda", "prefill"): _lengths({"B": 1, "H": 64, "KV": 8, "D": 64}, (1024, 8192)),
            ("cuda", "decode"): _requests({"H": 64, "KV": 8, "D": 64}, [(1, 4096), (64, 4096)]),
            ("cpu", "prefill"): _lengths({"B": 1, "H": 8, "KV": 2, "D": 64}, (256, 1024)),
            ("cpu", "decode"): _requests({"H": 8, "KV": 2, "D": 64}, [(1, 4096)]),
        },
        replace(CAUSAL, window=128, sinks=3),
        {"sinks": ("H",)},
    )


def _attentions() -> tuple[Case, ...]:
    return (
        _plain_attention(),
        _causal_attention(),
        _causal_lse(),
        _softcap_deep(),
        _softcap(),
        _sinks(),
        _rotary(),
        _qknorm_decode(),
    )


def _rotary() -> Case:
    more = {
        "g_q": ("D",), "g_k": ("D",),
        "cos_q": ("S", "E"), "sin_q": ("S", "E"), "cos_k": ("T", "E"), "sin_k": ("T", "E"),
    }  # fmt: skip
    big = {"B": 1, "H": 64, "KV": 8, "D": 128, "E": 64}
    small = {"B": 1, "H": 8, "KV": 2, "D": 64, "E": 32}
    points: Points = {
        ("cuda", "prefill"): _lengths(big, (512, 2048, 8192)),
        ("cpu", "prefill"): _lengths(small, (256, 1024)),
    }
    how = replace(CAUSAL, arrange=_normed_and_rotated, prologue=True)
    return _attention("B14", "qknorm-rope-attention", f.qknorm_rope_attention, points, how, more)


def _normed_and_rotated(q, k, v, g_q, g_k, cos_q, sin_q, cos_k, sin_k):  # pyright: ignore[reportMissingParameterType]
    norm = torch.nn.functional.rms_norm
    q = f.rotated(norm(q, (q.shape[-1],), g_q, 1e-6), cos_q, sin_q)
    return q, f.rotated(norm(k, (k.shape[-1],), g_k, 1e-6), cos_k, sin_k), v


def _normed(q, k, v, g_q, g_k):  # pyright: ignore[reportMissingParameterType]
    norm = torch.nn.functional.rms_norm
    return norm(q, (q.shape[-1],), g_q, 1e-6), norm(k, (k.shape[-1],), g_k, 1e-6), v


def _qknorm_decode() -> Case:
    points: Points = {
        ("cuda", "decode"): _requests(_serving(), [(1, 4096), (16, 4096)]),
        ("cpu", "decode"): _requests(_small(), [(1, 4096), (4, 1024)]),
    }
    how = replace(PLAIN, arrange=_normed, prologue=True)
    return _attention("B14", "qknorm-decode", f.qknorm_attention, points, how, {"g_q": ("D",), "g_k": ("D",)})


def _latent() -> Case:
    big = {"H": 128, "C": 512, "R": 64}
    small = {"H": 16, "C": 128, "R": 32}
    arrange = Attention(
        lambda q, kv, q_rope, k_rope: (
            torch.cat([q, q_rope], -1)[:, :, None],
            torch.cat([kv, k_rope], -1)[:, None],
            kv[:, None],
        ),
        lambda out: out[:, :, 0],
        scale=0.1352,
        latent=True,
    )
    return Case(
        name="mla-decode-shared",
        function=f.latent_shared,
        inputs={
            "q": ("B", "H", "C"),
            "kv": ("B", "T", "C"),
            "q_rope": ("B", "H", "R"),
            "k_rope": ("B", "T", "R"),
        },
        dynamic=("B", "T"),
        points={
            ("cuda", "decode"): [{**big, "B": b, "T": t} for b, t in ((1, 4096), (16, 4096), (64, 2048))],
            ("cpu", "decode"): [{**small, "B": b, "T": t} for b, t in ((1, 1024), (4, 512))],
        },
        flops=lambda s: 2.0 * s["B"] * s["H"] * s["T"] * (2 * s["C"] + s["R"]),
        row="B10",
        attention=arrange,
        independent=("B",),
    )


def _rows(base: Sizes, cuda: Sequence[int], cpu_base: Sizes, cpu: Sequence[int], split: int = 128) -> Points:
    """Points over rows S: those up to `split` are decode."""
    points: Points = {}
    for target, sizes, values in (("cuda", base, cuda), ("cpu", cpu_base, cpu)):
        for value in values:
            phase = "decode" if value <= split else "prefill"
            points.setdefault((target, phase), []).append({**sizes, "S": value})
    return points


def _narrow_matmul() -> Case:
    return Case(
        name="matmul-narrow",
        function=f.matmul,
        inputs={"x": ("S", "K"), "w": ("K", "N")},
        dynamic=("S", "N"),
        points={
            ("cuda", "decode"): [{"K": 4096, "S": b, "N": b} for b in (16, 32, 64, 128)],
            ("cpu", "decode"): [{"K": 4096, "S": b, "N": b} for b in (16, 64)],
        },
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
        row="B1",
    )


def _lora() -> Case:
    return Case(
        name="lora",
        function=f.lora,
        inputs={"x": ("S", "K"), "w": ("K", "N"), "a": ("K", "R"), "b": ("R", "N")},
        dynamic=("S", "R"),
        scale={"a": 0.02},
        points={
            ("cuda", "decode"): [
                *({"K": 4096, "N": 4096, "R": r, "S": s} for s, r in ((1, 16), (16, 8), (16, 16), (16, 64))),
                {"K": 256, "N": 4096, "R": 16, "S": 16},
            ],
            ("cuda", "prefill"): [{"K": 4096, "N": 4096, "R": 16, "S": s} for s in (256, 2048)],
            ("cpu", "decode"): [{"K": 2048, "N": 2048, "R": 16, "S": s} for s in (1, 16)],
            ("cpu", "prefill"): [{"K": 2048, "N": 2048, "R": 16, "S": 256}],
        },
        flops=lambda s: 2.0 * s["S"] * (s["K"] * s["N"] + s["R"] * (s["K"] + s["N"])),
        row="B15",
    )


def _mlp_block() -> Case:
    return Case(
        name="mlp-block",
        function=f.mlp_block,
        inputs={"x": ("S", "K"), "g": ("K",), "w1": ("K", "N"), "w2": ("K", "N"), "w3": ("N", "K")},
        dynamic=("S",),
        points=_rows({"K": 4096, "N": 14336}, (1, 16, 128, 1024), {"K": 1024, "N": 2816}, (1, 16, 128), 127),
        flops=lambda s: 6.0 * s["S"] * s["K"] * s["N"],
        row="B16",
    )


def _norm_linear() -> Case:
    return Case(
        name="layernorm+linear",
        function=f.layernorm_linear,
        inputs={"x": ("S", "K"), "g": ("K",), "b": ("K",), "w": ("K", "N"), "c": ("N",)},
        dynamic=("S",),
        points={
            ("cuda", "decode"): [{"K": 768, "N": 3072, "S": 16}, {"K": 1600, "N": 6400, "S": 16}],
            ("cuda", "prefill"): [{"K": 768, "N": 3072, "S": 1024}, {"K": 1600, "N": 6400, "S": 1024}],
            ("cpu", "decode"): [{"K": 768, "N": 3072, "S": s} for s in (1, 16)],
            ("cpu", "prefill"): [{"K": 768, "N": 3072, "S": 256}],
        },
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
        row="B17",
    )


def _quant_matmul() -> Case:
    return Case(
        name="quant-matmul",
        function=f.quant_matmul,
        inputs={"x": ("S", "K"), "w8": ("K", "N"), "s_w": ("N",)},
        dynamic=("S",),
        scale={"s_w": 1e-3},
        dtypes={"w8": torch.int8},
        peers={"int8 product": f.quant_matmul_int8},
        points=_rows({"K": 4096, "N": 4096}, (1, 16, 128, 4096), {"K": 1024, "N": 1024}, (1, 16, 256)),
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
        row="B22",
    )


def _linears() -> tuple[Case, ...]:
    return (_narrow_matmul(), _lora(), _mlp_block(), _norm_linear(), _quant_matmul(), _linear_loss())


def _linear_loss() -> Case:
    return Case(
        name="linear+cross-entropy",
        function=f.linear_cross_entropy,
        inputs={"h": ("S", "K"), "w": ("K", "V"), "y": ("S",)},
        dynamic=("S",),
        integers={"y": "V"},
        points={
            ("cuda", "prefill"): [
                *({"K": 4096, "V": 128256, "S": s} for s in (512, 1024, 4096)),
                *({"K": 4096, "V": 32000, "S": s} for s in (512, 4096)),
            ],
            ("cpu", "prefill"): [{"K": 512, "V": 32000, "S": s} for s in (64, 256)],
        },
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["V"],
        row="B19",
        memory=True,
    )


def _row_case(
    row: str,
    name: str,
    function: Function,
    inputs: Mapping[str, Sequence[str]],
    points: Points,
    **more: object,
) -> Case:
    """Something that reads rows (S, N) and is bound by memory."""
    return Case(
        name=name, function=function, inputs=inputs, dynamic=("S", "N"), points=points, row=row,
        **more,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def _sheets(cuda: Sequence[tuple[int, int]], cpu: Sequence[tuple[int, int]]) -> Points:
    points: Points = {}
    for target, values in (("cuda", cuda), ("cpu", cpu)):
        for rows, width in values:
            phase = "decode" if rows <= 64 else "prefill"
            points.setdefault((target, phase), []).append({"S": rows, "N": width})
    return points


def _row_cases() -> tuple[Case, ...]:
    wide = _sheets(
        [(4096, 4096), (8192, 32768), (64, 128256), (16, 32768)], [(512, 4096), (64, 32768), (16, 128256)]
    )
    norms = _sheets([(16, 4096), (2048, 4096), (4096, 8192)], [(16, 4096), (512, 4096), (1024, 4096)])
    hidden = _sheets([(m, 4096) for m in (1, 15, 64, 170, 2048, 14509)], [(m, 4096) for m in (1, 64, 1024)])
    x: Mapping[str, Sequence[str]] = {"x": ("S", "N")}
    return (
        _row_case("B17", "add+rmsnorm", f.add_rmsnorm, {**x, "res": ("S", "N"), "g": ("N",)}, hidden),
        _row_case("B17", "rmsnorm", f.rmsnorm, {**x, "g": ("N",)}, norms),
        _row_case("B17", "layernorm", f.layernorm, {**x, "g": ("N",), "b": ("N",)}, norms),
        _row_case("B18", "softmax", f.softmax, x, wide),
        _row_case("B18", "log-softmax", f.log_softmax, x, wide),
        _row_case(
            "B19", "cross-entropy", f.cross_entropy, {**x, "y": ("S",)},
            _sheets([(64, 128256), (4096, 32000), (4096, 128256)], [(64, 32000), (512, 32000)]),
            integers={"y": "N"},
        ),
        _row_case(
            "B23", "ntrans", f.ntrans, {**x, "h": ("S", "N"), "alpha": ("N",)},
            _sheets([(1, 4096), (8, 4096), (1024, 4096), (4096, 4096)], [(1, 4096), (8, 4096), (1024, 4096)]),
            scale={"alpha": 0.05},
        ),
    )  # fmt: skip


def static(paper: Sequence[Case]) -> tuple[Case, ...]:
    """The suite; `paper` are the cases that it shares with the paper's."""
    rows = {
        "matmul": "B1", "matmul+matmul": "B2", "matmul+rowsum": "B3", "swiglu": "B4", "rmsnorm+matmul": "B5",
        "mha-d64": "B6", "mha-d128": "B6", "gqa-d128": "B7", "mqa-d128": "B8", "mla-prefill": "B9",
        "mla-decode": "B10",
    }  # fmt: skip
    shared = [
        replace(
            case,
            row=rows[case.name],
            points={key: [*values[:1], *values[1:][-1:]] for key, values in case.points.items()},
        )
        for case in paper
        if case.name in rows
    ]
    return (*_row_cases(), *_linears(), *_attentions(), _latent(), *shared)
