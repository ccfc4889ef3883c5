// Products of bfloat16: by dot products of pairs where the machine has them (avx512_bf16), else by conversion.
//
// Both operands hold bfloat16 values, the first as they are or as floats. An instruction takes two steps of the depth at
// once: panels and rows hold the pair of k and k + 1 in one word, zero beyond the depth. Sums are float32; what is
// below the normal range counts as zero. CLEAVE_PAIRS takes the same way with the instruction written out.
#pragma once

#include "cpp_products.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#define CLEAVE_PAIRS 1
#endif

namespace cleave {

#if defined(CLEAVE_PAIRS)

using Floats = Vector<float>::type;
typedef u32 u32s_loose __attribute__((vector_size(kBytes), aligned(4), may_alias));

// sum + the products of the pairs of a and b, lane by lane.
inline Floats pairs_added(Floats sum, u32s a, u32s b) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  const auto high = [](u32s x) { return reinterpret_cast<Floats>(x & 0xffff0000u); };
  const auto low = [](u32s x) { return reinterpret_cast<Floats>(x << 16); };
  return fused(low(a), low(b), fused(high(a), high(b), sum));
#endif
}

inline u32 half(bf16 x) { return x.raw; }
inline u32 half(float x) { return bits<u32>(x) >> 16; }  // which holds a value of bfloat16

// word[k, j] = the pair of k and k + 1 of column j; `width` words a line, zero beyond n.
template <class B>
__attribute__((noinline)) void pack_pairs(i64 depth, const B* b, i64 b_k, i64 b_column, i64 n, i64 width, u32* word) {
  for (i64 k = 0; k < depth; k += 2, word += width) {
    const B* const first = b + k * b_k;
    const bool paired = k + 1 < depth;
    const B* const second = paired ? first + b_k : first;
    for (i64 j = 0; j < n; ++j)
      word[j] = half(first[j * b_column]) | (paired ? half(second[j * b_column]) << 16 : 0);
    for (i64 j = n; j < width; ++j) word[j] = 0;
  }
}

// The first n of the elements that lie next to each other, at most a vector of them, each in a word's lower half.
inline u32s halves(const float* p, i64 n) { return reinterpret_cast<u32s>(load_some<float>(p, n)) >> 16; }
inline u32s halves(const bf16* p, i64 n) {
  u16s raw{};
  if (n >= kLanes<float>)
    __builtin_memcpy(&raw, p, sizeof raw);
  else
    copy_some<kLanes<float>>(reinterpret_cast<bf16*>(&raw), p, n);
  return __builtin_convertvector(raw, u32s);
}

// A pair as it lies in memory where the elements of a column are next to each other.
struct Pair {
  bf16 low, high;
};
#if defined(CLEAVE_TRANSPOSES)
inline float8 load8(const Pair* p) {
  float8 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
#endif

// The panel of a second operand: word[k, j] = the pair of k and k + 1 of column j for j < n; beyond, whose sums nobody
// reads, zero or a column again. Of less than eight lines all eight may be written.
template <class B>
__attribute__((noinline)) void pack_pair_panel(i64 depth, const B* b, i64 b_k, i64 b_column, i64 n, u32* word) {
  constexpr i64 W = kColumns<float>, lanes = kLanes<float>;
  if (b_column == 1) {
    for (i64 k = 0; k < depth; k += 2, word += W)
      for (i64 j = 0; j < W; j += lanes) {
        const i64 some = least(greatest(n - j, 0), lanes);
        const u32s low = halves(b + k * b_k + j, some);
        const u32s high = k + 1 < depth ? halves(b + (k + 1) * b_k + j, some) : u32s{};
        *reinterpret_cast<u32s_loose*>(word + j) = low | high << 16;
      }
    return;
  }
#if defined(CLEAVE_TRANSPOSES)
  if constexpr (std::is_same_v<B, bf16>)
    if (b_k == 1 && b_column != 1) {
      const i64 whole = depth / 2;
      for (i64 j = 0; whole && j < W; j += 8) {
        const auto column = [&](i64 c) { return reinterpret_cast<const Pair*>(b + least(j + c, n - 1) * b_column); };
        const Pair* const from[8] = {column(0), column(1), column(2), column(3),
                                     column(4), column(5), column(6), column(7)};
        transpose_rows(whole, from, reinterpret_cast<float*>(word) + j, W);
      }
      if (depth % 2) pack_pairs(1, b + depth - 1, b_k, b_column, n, W, word + whole * W);
      return;
    }
#endif
  pack_pairs(depth, b, b_k, b_column, n, W, word);
}

// Elements that lie next to each other as halves of words, zero behind them up to a whole word; of floats as many
// are written as make up vectors.
inline void pack_row(i64 n, const float* a, u16* to) {
  constexpr i64 lanes = kLanes<float>;
  for (i64 k = 0; k < n; k += lanes) {
    const u32s some = reinterpret_cast<u32s>(n - k < lanes ? load_some<float>(a + k, n - k) : load_lanes<float>(a + k));
    const u16s cut = __builtin_convertvector(some >> 16, u16s);
    __builtin_memcpy(to + k, &cut, sizeof cut);
  }
}
inline void pack_row(i64 n, const bf16* a, u16* to) {
  __builtin_memcpy(to, a, n * sizeof *a);
  if (n % 2) __builtin_memset(to + n, 0, sizeof *to);
}

// The first operand: row[r, k] = the pair of 2 * k and 2 * k + 1, kDepth words a row, for a depth of twice that.
template <class A>
__attribute__((noinline)) void pack_rows(i64 rows, i64 depth, const A* a, i64 a_row, i64 a_k, u32* row) {
  for (i64 r = 0; r < rows; ++r, a += a_row, row += kDepth)
    if (a_k == 1)
      pack_row(depth, a, reinterpret_cast<u16*>(row));
    else
      pack_pairs(depth, a, a_k, i64(1), i64(1), i64(1), row);
}

// c[r, 0:n] (+)= sum over pairs of row[r, k] and panel[k, :].
template <int R>
__attribute__((noinline)) void pairs_block(i64 pairs, const u32* row, const u32* panel, float* c, i64 c_row, i64 n,
                                           bool add) {
  Floats sum[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = Floats{};
#pragma GCC unroll 1
  for (i64 k = 0; k < pairs; ++k, panel += kColumns<float>) {
    const u32s b0 = *reinterpret_cast<const u32s_loose*>(panel);
    const u32s b1 = *reinterpret_cast<const u32s_loose*>(panel + kLanes<float>);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const u32s x = row[r * kDepth + k] + u32s{};  // in every lane
      sum[r][0] = pairs_added(sum[r][0], x, b0);
      sum[r][1] = pairs_added(sum[r][1], x, b1);
    }
  }
  put_block<R>(sum, c, c_row, n, add);
}

template <class A, class B>
inline void pairs_part(i64 rows, i64 columns, i64 depth, const A* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                       i64 b_column, float* c, i64 c_row, bool add, u32* room) {
  constexpr i64 W = kColumns<float>;
  const i64 pairs = ceil_div(depth, 2);
  u32* const packed = room + kDepth * W;
  pack_rows(rows, depth, a, a_row, a_k, packed);
  for (i64 j = 0; j < columns; j += W) {
    const i64 n = least(W, columns - j);
    pack_pair_panel(depth, b + j * b_column, b_k, b_column, n, room);
    for (i64 r = 0, count = 0; r < rows; r += count) {
      count = block_rows(rows - r);
      of_rows(count, [&](auto constant) {
        pairs_block<constant>(pairs, packed + r * kDepth, room, c + r * c_row + j, c_row, n, add);
      });
    }
  }
}

// As `product`, where both operands hold values of bfloat16. Of few rows the first operand is made floats (`widened`).
template <class A, class B, class Widened>
inline void product_pairs(i64 rows, i64 columns, i64 depth, const A* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                          i64 b_column, float* c, i64 c_row, bool add, float* room, const Widened& widened) {
  const bool few = rows <= kFewRows && (b_column == 1 || (b_k == 1 && a_k == 1));
  if (!add && (few || depth == 0))
    for (i64 r = 0; r < rows; ++r)
      for (i64 j = 0; j < columns; ++j) c[r * c_row + j] = 0;
  if (few) return widened();
  constexpr i64 part = 2 * kDepth;
  for (i64 k = 0; k < depth; k += part)
    for (i64 r = 0; r < rows; r += kSliverRows<float>)
      pairs_part(least(kSliverRows<float>, rows - r), columns, least(part, depth - k), a + r * a_row + k * a_k, a_row,
                 a_k, b + k * b_k, b_k, b_column, c + r * c_row, c_row, add || k > 0, reinterpret_cast<u32*>(room));
}
#endif

template <class B>
inline void product_bf16(i64 rows, i64 columns, i64 depth, const float* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                         i64 b_column, float* c, i64 c_row, bool add, float* room) {
#if defined(CLEAVE_PAIRS)
  product_pairs(rows, columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row, add, room,
                [&] { few_rows(rows, columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row); });
#else
  product(rows, columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row, add, room);
#endif
}

// With the first operand as it lies in memory: where pairs do not pay, part by part as floats, in kSliverBytes behind
// the room of `product`.
template <class B>
inline void product_bf16(i64 rows, i64 columns, i64 depth, const bf16* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                         i64 b_column, float* c, i64 c_row, bool add, float* room) {
  float* const wide = room + kDepth * kColumns<float> + kSliverBytes / i64(sizeof(float)) + 16;
  const auto widen = [=](i64 first, i64 height, i64 k, i64 width) {
    for (i64 i = 0; i < height; ++i) {
      const bf16* const from = a + (first + i) * a_row + k * a_k;
      float* const to = wide + i * width;
      if (a_k == 1)
        for (i64 j = 0; j < width; ++j) to[j] = float(from[j]);
      else
        for (i64 j = 0; j < width; ++j) to[j] = float(from[j * a_k]);
    }
  };
#if defined(CLEAVE_PAIRS)
  product_pairs(rows, columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row, add, room, [&] {
    constexpr i64 part = kSliverRows<float> / kFewRows * kDepth;
    for (i64 k = 0; k < depth; k += part) {
      const i64 width = least(part, depth - k);
      widen(0, rows, k, width);
      few_rows(rows, columns, width, wide, width, i64(1), b + k * b_k, b_k, b_column, c, c_row);
    }
  });
#else
  const i64 part = rows <= kFewRows ? kSliverRows<float> / kFewRows * kDepth : kDepth;
  for (i64 k = 0; k == 0 || k < depth; k += part)
    for (i64 r = 0; r < rows; r += kSliverRows<float>) {
      const i64 height = least(kSliverRows<float>, rows - r), width = least(part, depth - k);
      widen(r, height, k, width);
      product(height, columns, width, wide, width, i64(1), b + k * b_k, b_k, b_column, c + r * c_row, c_row,
              add || k > 0, room);
    }
#endif
}

}  // namespace cleave
