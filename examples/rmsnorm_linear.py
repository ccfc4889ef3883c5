"""RMSNorm and a linear layer: the scale moves behind the product, and one loop computes both reductions.

cleave explain examples/rmsnorm_linear.py:rmsnorm_linear
python examples/rmsnorm_linear.py
"""

import torch
import torch.nn.functional as F

import cleave


@cleave.program(x="f32[N, K=2048]", g="f32[K]", w="f32[O=2048, K]", N=256)
def rmsnorm_linear(x, g, w):
    return F.linear(F.rms_norm(x, (x.shape[-1],), g, 1e-5), w)


def main() -> None:
    fast = cleave.jit(rmsnorm_linear)
    for rows in (256, 17, 1):
        x, g, w = torch.randn(rows, 2048), torch.randn(2048), torch.randn(2048, 2048) / 45
        gap = (fast(x, g, w) - rmsnorm_linear(x.double(), g.double(), w.double())).abs().max()
        print(f"N={rows}: off float64 by {gap:.1e}, compiles so far {fast.compile_count}")


if __name__ == "__main__":
    main()
