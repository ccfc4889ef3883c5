// The product of two tiles by register blocks of kRows rows and kColumns columns.
//
// The second operand is cut into panels of kColumns columns and at most kDepth deep, which the first-level cache
// holds. Where its columns lie next to each other the first rows read it as it lies and leave the panel for the
// others; else it is transposed into the panel. The first operand is put in the order of reading where many panels
// use it. Sums stay in registers for the whole depth of a panel.
#pragma once

#include "cpp_streams.h"
#include "cpp_vectors.h"

namespace cleave {

constexpr i64 kDepth = 256;            // of a panel: it stays in the first-level cache
constexpr i64 kFewRows = 4;            // for which panels do not pay
constexpr i64 kAhead = 16;             // lines that are asked for before they are read
constexpr i64 kSliverBytes = 264 * 1024;  // of the first operand in the order of reading: the second-level cache
constexpr i64 kManyPanels = 8;         // that read it, so that putting it in order pays
constexpr i64 kNearBytes = 32 * 1024;  // which stay in the first-level cache in any order
template <class T>
constexpr i64 kSliverRows = kSliverBytes / i64(sizeof(T)) / kDepth;  // a multiple of kRows

// The rows of the next register block: few sizes, and none that leaves the units of the machine idle if it can be.
inline i64 block_rows(i64 left) {
  if (left >= kRows && !(kRows == 6 && left == 8)) return kRows;
  return left >= 8 && kRows > 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

// c[r, 0:n] (+)= sum[r] for some rows of two vectors of which the first n elements count.
template <class V, class T>
__attribute__((noinline, noclone)) void put_some(i64 rows, const V* sum, T* c, i64 c_row, i64 n, bool add) {
  constexpr i64 lanes = kLanes<T>;
  const i64 first = least(n, lanes), second = n - first;
  for (; rows > 0; --rows, sum += 2, c += c_row) {
    store_some(c, add ? load_some<T>(c, first) + sum[0] : sum[0], first);
    if (second) store_some(c + lanes, add ? load_some<T>(c + lanes, second) + sum[1] : sum[1], second);
  }
}

// c[r, 0:n] (+)= sum[r] for R rows.
template <int R, class V, class T>
inline __attribute__((always_inline)) void put_block(const V (&sum)[R][2], T* c, i64 c_row, i64 n, bool add) {
  using L = typename Vector<T>::loose;
  if (n == kColumns<T>) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      L* out = reinterpret_cast<L*>(c + r * c_row);
      out[0] = add ? out[0] + sum[r][0] : sum[r][0];
      out[1] = add ? out[1] + sum[r][1] : sum[r][1];
    }
    return;
  }
  V rows[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) rows[r][0] = sum[r][0], rows[r][1] = sum[r][1];
  put_some(R, &rows[0][0], c, c_row, n, add);
}

// c[r, 0:n] (+)= sum_k a[r, k] * panel[k, :] for R rows; the panel is dense with kColumns columns.
// `fills`: it is made of the lines of b on the way.
template <int R, bool fills, class T, class B>
__attribute__((noinline)) void product_block(i64 depth, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k, T* panel,
                                             T* c, i64 c_row, i64 n, bool add) {
  using V = typename Vector<T>::type;
  constexpr i64 lanes = kLanes<T>;
  V sum[R][2];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = V{};
#pragma GCC unroll 1
  for (i64 k = 0; k < depth; ++k, panel += kColumns<T>, a += a_k) {
    V b0, b1;
    if constexpr (fills) {
      b0 = load_lanes<T>(b), b1 = load_lanes<T>(b + lanes);
      __builtin_prefetch(b + kAhead * b_k);
      *reinterpret_cast<V*>(panel) = b0, *reinterpret_cast<V*>(panel + lanes) = b1;
      b += b_k;
    } else {
      b0 = *reinterpret_cast<const V*>(panel), b1 = *reinterpret_cast<const V*>(panel + lanes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V x = a[r * a_row] - V{};  // in every lane
      sum[r][0] = fused(x, b0, sum[r][0]);
      sum[r][1] = fused(x, b1, sum[r][1]);
    }
  }
  put_block<R>(sum, c, c_row, n, add);
}

// `block` with the rows of a register block as a constant.
template <class Block>
inline void of_rows(i64 rows, const Block& block) {
  if (rows == kRows) return block(std::integral_constant<int, kRows>{});
  if constexpr (kRows > 8) {
    if (rows == 8) return block(std::integral_constant<int, 8>{});
  }
  if (rows == 4) return block(std::integral_constant<int, 4>{});
  if (rows == 2) return block(std::integral_constant<int, 2>{});
  block(std::integral_constant<int, 1>{});
}

template <bool fills, class T, class B>
inline void product_block(i64 rows, i64 depth, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k, T* panel, T* c,
                          i64 c_row, i64 n, bool add) {
  of_rows(rows, [&](auto count) {
    product_block<count, fills>(depth, a, a_row, a_k, b, b_k, panel, c, c_row, n, add);
  });
}

#if defined(CLEAVE_TRANSPOSES)
// to[k, j] = from[j][k] for 8 rows and all of the depth. The last 8 of k are done whole, some of them again: a depth
// that 8 does not divide has no other end. Of less than 8 there are zeros beyond.
template <class B>
inline void transpose_rows(i64 depth, const B* const (&from)[8], float* to, i64 to_row) {
  if (depth < 8) {
    B rows[8][8] = {};
    for (int j = 0; j < 8; ++j) copy_some<8>(rows[j], from[j], depth);
    return transpose8(&rows[0][0], 8, to, to_row);
  }
  for (i64 k = 0; k < depth; k += 8) {
    k = least(k, depth - 8);
    const B* const at[8] = {from[0] + k, from[1] + k, from[2] + k, from[3] + k,
                            from[4] + k, from[5] + k, from[6] + k, from[7] + k};
    transpose8(at, to + k * to_row, to_row);
  }
}

// panel[k, j] = b[k, j] for j < n, where the elements of a column lie next to each other; anything beyond.
template <class B>
inline void pack_turned(i64 depth, const B* b, i64 b_column, i64 n, float* panel) {
  constexpr i64 W = kColumns<float>;
  for (i64 j = 0; j < W; j += 8) {
    const auto column = [&](i64 c) { return b + least(j + c, n - 1) * b_column; };
    const B* const from[8] = {column(0), column(1), column(2), column(3), column(4), column(5), column(6), column(7)};
    transpose_rows(depth, from, panel + j, W);
  }
}
#endif

// panel[k, j] = b[k, j] for j < n; beyond, whose sums nobody reads, zero or a column again. Of less than eight lines
// all eight may be written.
template <class T, class B>
__attribute__((noinline)) void pack_panel(i64 depth, const B* b, i64 b_k, i64 b_column, i64 n, T* panel) {
  using V = typename Vector<T>::type;
  constexpr i64 W = kColumns<T>, lanes = kLanes<T>;
  if (b_column == 1) {
    for (i64 k = 0; k < depth; ++k, b += b_k, panel += W) {
      *reinterpret_cast<V*>(panel) = load_some<T>(b, n);
      *reinterpret_cast<V*>(panel + lanes) = n > lanes ? load_some<T>(b + lanes, n - lanes) : V{};
    }
    return;
  }
#if defined(CLEAVE_TRANSPOSES)
  if constexpr (std::is_same_v<T, float> && !std::is_same_v<B, double>)
    if (b_k == 1) return pack_turned(depth, b, b_column, n, panel);
#endif
  for (i64 k = 0; k < depth; ++k) {
    for (i64 j = 0; j < n; ++j) panel[k * W + j] = T(b[k * b_k + j * b_column]);
    for (i64 j = n; j < W; ++j) panel[k * W + j] = T(0);
  }
}

// The first operand in the order of reading: register block by register block, sliver[k, r], as long as blocks have
// all of their rows. Eight elements more than that may be written.
template <class T>
__attribute__((noinline)) void pack_slivers(i64 rows, i64 depth, const T* a, i64 a_row, i64 a_k, T* sliver) {
  for (i64 r = 0; block_rows(rows - r) == kRows; r += kRows, sliver += kRows * depth) {
    const T* const first = a + r * a_row;
#if defined(CLEAVE_TRANSPOSES)
    if constexpr (std::is_same_v<T, float>) {
      if (a_k == 1 && depth >= 8) {
        // Of six rows the last two that are written belong to the next k, which is written after this one.
        const auto row = [&](i64 n) { return first + least(n, rows - r - 1) * a_row; };
        const T* const from[8] = {row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)};
        for (i64 k = 0; k < depth; k += 8) {
          k = least(k, depth - 8);
          const T* const at[8] = {from[0] + k, from[1] + k, from[2] + k, from[3] + k,
                                  from[4] + k, from[5] + k, from[6] + k, from[7] + k};
          transpose8(at, sliver + k * kRows, kRows);
          if constexpr (kRows > 8)
            transpose8(first + (kRows - 8) * a_row + k, a_row, sliver + (k + 1) * kRows - 8, kRows);
        }
        continue;
      }
    }
#endif
    for (i64 k = 0; k < depth; ++k)
      for (i64 i = 0; i < kRows; ++i) sliver[k * kRows + i] = first[i * a_row + k * a_k];
  }
}

// Ask for lines `first` to `stop` of a panel: of those of kColumns columns where these lie next to each other, else
// column by column.
template <class T, class B>
inline void ask_for(i64 first, i64 stop, const B* b, i64 b_k, i64 b_column) {
  constexpr i64 W = kColumns<T>, line = 64 / i64(sizeof(B));
  for (; first < stop; ++first)
    __builtin_prefetch(b_column == 1 ? b + first * b_k : b + first % W * b_column + first / W * line * b_k, 0, 2);
}

// One part of the depth: c[i, j] (+)= sum_k a[i, k] * b[k, j]. `after` is where b goes on in the next part.
template <class T, class B>
__attribute__((noinline, noclone)) void product_part(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row,
                                                     i64 a_k, const B* b, i64 b_k, i64 b_column, const B* after,
                                                     T* c, i64 c_row, bool add, T* room) {
  constexpr i64 W = kColumns<T>;
  // While a panel is used the next one comes, a few lines with each register block.
  const i64 lines = b_column == 1 ? depth : b_k == 1 ? depth * W * i64(sizeof(B)) / 64 : 0;
  T* const slivers = room + kDepth * W;
  const bool in_order = columns >= kManyPanels * W && rows * depth * i64(sizeof(T)) > kNearBytes;
  if (in_order) pack_slivers(rows, depth, a, a_row, a_k, slivers);
  for (i64 j = 0; j < columns; j += W) {
    const i64 n = least(W, columns - j);
    const B* const from = b + j * b_column;
    const bool fills = b_column == 1 && n == W;
    if (!fills) pack_panel(depth, from, b_k, b_column, n, room);
    const B* const next = j + W < columns ? from + W * b_column : after;
    const T* sliver = slivers;
    i64 asked = 0;
    for (i64 r = 0, count = 0; r < rows; r += count, sliver += count * depth) {
      count = block_rows(rows - r);
      const bool ordered = in_order && count == kRows;  // the last few rows are read as they lie
      const T* const own = ordered ? sliver : a + r * a_row;
      const i64 own_row = ordered ? 1 : a_row, own_k = ordered ? kRows : a_k;
      if (fills && r == 0)
        product_block<true>(count, depth, own, own_row, own_k, from, b_k, room, c + j, c_row, n, add);
      else {
        const i64 wanted = lines * r / rows;
        ask_for<T>(asked, wanted, next, b_k, b_column), asked = wanted;
        product_block<false>(count, depth, own, own_row, own_k, from, b_k, room, c + r * c_row + j, c_row, n, add);
      }
    }
  }
}

#if defined(CLEAVE_TRANSPOSES)
constexpr i64 kTurned = 96;  // columns that are made at once: a multiple of the rows of any register block and of 8

// c[i, j] (+)= turned[j, i] for some rows and `columns` columns.
inline void turn_back(i64 rows, i64 columns, const float* turned, float* c, i64 c_row, bool add) {
  constexpr i64 W = kColumns<float>;
  for (i64 i = 0; i < rows; i += 8)
    for (i64 j = 0; j < columns; j += 8) {
      float block[64];
      transpose8(turned + j * W + i, W, block, 8);
      float* const out = c + i * c_row + j;
      const i64 height = least(8, rows - i), width = least(8, columns - j);
      for (i64 y = 0; y < height; ++y) {
        float* const line = out + y * c_row;
        if (width == 8) {
          *reinterpret_cast<float8_loose*>(line) = add ? load8(line) + load8(block + 8 * y) : load8(block + 8 * y);
          continue;
        }
        float row[8] = {};
        if (add) copy_some<8>(row, line, width);
        *reinterpret_cast<float8_loose*>(row) = load8(row) + load8(block + 8 * y);
        copy_some<8>(line, row, width);
      }
    }
}

// One part of the depth with few rows, where the elements of a column of b are next to each other: the columns take
// the place of the rows. Then b is read as it lies, and the short side of the result is transposed instead of b.
inline __attribute__((noinline)) void product_turned(i64 rows, i64 columns, i64 depth, const float* a, i64 a_row,
                                                     i64 a_k, const float* b, i64 b_column, float* c, i64 c_row,
                                                     bool add, float* room) {
  constexpr i64 W = kColumns<float>;
  float* const turned = room + kDepth * W;
  for (i64 i = 0; i < rows; i += W) {
    const i64 n = least(W, rows - i);
    pack_panel(depth, a + i * a_row, a_k, a_row, n, room);
    for (i64 j = 0; j < columns; j += kTurned) {
      const i64 some = least(kTurned, columns - j);
      for (i64 y = 0, count = 0; y < some; y += count) {
        count = block_rows(some - y);
        const float* const from = b + (j + y) * b_column;
        for (i64 next = count; next < 2 * count; ++next)
          for (i64 k = 0; k < depth; k += 16) __builtin_prefetch(from + next * b_column + k);
        product_block<false>(count, depth, from, b_column, i64(1), from, i64(0), room, turned + y * W, W, W, false);
      }
      turn_back(n, some, turned, c + i * c_row + j, c_row, add);
    }
  }
}
#endif

// c[i, j] (+)= sum_k a[i, k] * b[k, j]; the columns of c are next to each other. `room` holds a panel of 32 KiB at
// most, slivers of kSliverBytes, and eight elements.
template <class T, class B>
__attribute__((noinline, noclone)) void product(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k,
                                                const B* b, i64 b_k, i64 b_column, T* c, i64 c_row, bool add,
                                                T* room) {
  if (!add && (depth == 0 || rows <= kFewRows))
    for (i64 r = 0; r < rows; ++r)
      for (i64 j = 0; j < columns; ++j) c[r * c_row + j] = 0;
  if (rows <= kFewRows && (b_column == 1 || (b_k == 1 && a_k == 1)))
    return few_rows(rows, columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row);
  if (rows <= kFewRows) add = true;
#if defined(CLEAVE_TRANSPOSES)
  if constexpr (std::is_same_v<T, float> && std::is_same_v<B, float>) {
    constexpr i64 W = kColumns<T>;
    const i64 wide = ceil_div(rows, W) * W;  // with what is empty of the panels of the rows
    if (b_k == 1 && b_column != 1 && wide <= 2 * W && 4 * wide <= 5 * rows && columns >= 2 * rows) {
      for (i64 k = 0; k < depth; k += kDepth)
        product_turned(rows, columns, least(kDepth, depth - k), a + k * a_k, a_row, a_k, b + k, b_column, c, c_row,
                       add || k > 0, room);
      return;
    }
  }
#endif
  for (i64 k = 0; k < depth; k += kDepth)
    for (i64 r = 0; r < rows; r += kSliverRows<T>)
      product_part(least(kSliverRows<T>, rows - r), columns, least(kDepth, depth - k), a + r * a_row + k * a_k, a_row,
                   a_k, b + k * b_k, b_k, b_column, b + (k + kDepth) * b_k, c + r * c_row, c_row, add || k > 0, room);
}

}  // namespace cleave
