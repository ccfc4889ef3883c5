"""Candidates with Folds written by hand: an online softmax (maximum and sum) and a mean with a variance."""

from __future__ import annotations

from cleave.ir.candidate import Candidate
from cleave.ir.text import parse_candidate
from programs import TEXTS

SOFTMAX: Candidate = parse_candidate(
    "candidate {"
    + TEXTS["softmax"]
    + """
  form "as written"
  fold over K {
    value m = m
    value s = s
    element e[n: N, k: part(K)] = x[n, k]
    reason "exp(x - u) = exp(u' - u) * exp(x - u')"
    init nothing() where N {
      m0: f32 = -inf
      s0: f32 = 0.0
      m[n: N]: f32 = id(m0)
      s[n: N]: f32 = id(s0)
      return m[n], s[n]
    }
    step more(m: f32[N], s: f32[N], e: f32[N, part(K)]) {
      top[n: N]: f32 = max[k: part(K)](e[n, k])
      new[n: N]: f32 = max(m[n], top[n])
      nothing[n: N]: bool = eq(new[n], -inf)
      u[n: N]: f32 = select(nothing[n], 0.0, new[n])
      gap[n: N]: f32 = sub(m[n], u[n])
      r[n: N]: f32 = exp(gap[n])
      kept[n: N]: f32 = mul(s[n], r[n])
      c[n: N, k: part(K)]: f32 = sub(e[n, k], u[n])
      raised[n: N, k: part(K)]: f32 = exp(c[n, k])
      added[n: N]: f32 = sum[k: part(K)](raised[n, k])
      total[n: N]: f32 = add(kept[n], added[n])
      return m: new[n], s: total[n]
    }
    merge both(a_m: f32[N], a_s: f32[N], b_m: f32[N], b_s: f32[N]) {
      new[n: N]: f32 = max(a_m[n], b_m[n])
      nothing[n: N]: bool = eq(new[n], -inf)
      u[n: N]: f32 = select(nothing[n], 0.0, new[n])
      a_gap[n: N]: f32 = sub(a_m[n], u[n])
      b_gap[n: N]: f32 = sub(b_m[n], u[n])
      a_r[n: N]: f32 = exp(a_gap[n])
      b_r[n: N]: f32 = exp(b_gap[n])
      a_part[n: N]: f32 = mul(a_s[n], a_r[n])
      b_part[n: N]: f32 = mul(b_s[n], b_r[n])
      total[n: N]: f32 = add(a_part[n], b_part[n])
      return m: new[n], s: total[n]
    }
    finish done(m: f32[N], s: f32[N]) {
      return m[n], s[n]
    }
  }
}"""
)

# Welford's: the state is the count, the mean, and the sum of squared distances from it.
VARIANCE: Candidate = parse_candidate(
    """candidate {
  program variance(x: f32[N, K], w: f32[K]) {
    total[n: N]: f32 = contract[k: K](x[n, k], w[k])
    weight: f32 = sum[k: K](w[k])
    mean[n: N]: f32 = div(total[n], weight)
    c[n: N, k: K]: f32 = sub(x[n, k], mean[n])
    sq[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
    spread[n: N]: f32 = contract[k: K](sq[n, k], w[k])
    return mean[n], spread[n]
  }
  fold over K {
    value total = total
    value spread = spread
    element x[n: N, k: part(K)] = x[n, k]
    element w[k: part(K)] = w[k]
    init nothing() where N {
      count: f32 = 0.0
      zero: f32 = 0.0
      mean[n: N]: f32 = id(zero)
      spread[n: N]: f32 = id(zero)
      return count, mean[n], spread[n]
    }
    step more(count: f32[], mean: f32[N], spread: f32[N], x: f32[N, part(K)], w: f32[part(K)]) {
      added: f32 = sum[k: part(K)](w[k])
      all: f32 = add(count, added)
      c[n: N, k: part(K)]: f32 = sub(x[n, k], mean[n])
      first[n: N]: f32 = contract[k: part(K)](c[n, k], w[k])
      second[n: N]: f32 = contract[k: part(K)](c[n, k], c[n, k], w[k])
      empty: bool = eq(all, 0.0)
      below: f32 = select(empty, 1.0, all)
      shift[n: N]: f32 = div(first[n], below)
      new[n: N]: f32 = add(mean[n], shift[n])
      back[n: N]: f32 = mul(first[n], shift[n])
      grown[n: N]: f32 = add(spread[n], second[n])
      left[n: N]: f32 = sub(grown[n], back[n])
      return count: all, mean: new[n], spread: left[n]
    }
    merge both(
      a_count: f32[], a_mean: f32[N], a_spread: f32[N], b_count: f32[], b_mean: f32[N], b_spread: f32[N]
    ) {
      all: f32 = add(a_count, b_count)
      empty: bool = eq(all, 0.0)
      below: f32 = select(empty, 1.0, all)
      share: f32 = div(b_count, below)
      gap[n: N]: f32 = sub(b_mean[n], a_mean[n])
      shift[n: N]: f32 = mul(gap[n], share)
      new[n: N]: f32 = add(a_mean[n], shift[n])
      wide[n: N]: f32 = mul(gap[n], shift[n])
      between[n: N]: f32 = mul(wide[n], a_count)
      inside[n: N]: f32 = add(a_spread[n], b_spread[n])
      spread[n: N]: f32 = add(inside[n], between[n])
      return count: all, mean: new[n], spread[n]
    }
    finish done(count: f32[], mean: f32[N], spread: f32[N]) {
      total[n: N]: f32 = mul(mean[n], count)
      return total[n], spread[n]
    }
  }
}"""
)
