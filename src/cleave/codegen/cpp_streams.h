// Products of few rows: the second operand is read once, as it lies in memory, and nothing is packed.
//
// Such a product takes as long as reading its matrix does. Where the columns lie next to each other some lines are
// read side by side, each as one long run, which is what the processor itself fetches ahead; where the elements of
// a column do, some columns are.
#pragma once

#include "cpp_vectors.h"

namespace cleave {

#if defined(__SANITIZE_ADDRESS__)  // every access is checked: less text, or the compiler takes minutes
constexpr int kLines = 2, kSums = 2;
#else
constexpr int kLines = 8, kSums = 8;
#endif

constexpr int kLineBytes = 64;  // of a cache
constexpr i64 kAheadBytes = 512;  // of a line of b: asked for before they are read

constexpr int within(int least, int x, int most) { return x < least ? least : x > most ? most : x; }

// Columns of a step, in vectors: a cache line of b.
template <class T, class B>
constexpr int kStep = within(1, kLineBytes / kLanes<T> / int(sizeof(B)), 4);

// c[r, j] += sum_k a[r, k] * b[k, j] for R rows, K lines of b and `count` blocks of J vectors of columns; of each
// line what lies `ahead` is asked for.
template <int R, int J, int K, class T, class B>
inline __attribute__((always_inline)) void add_lines(i64 count, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                                                     T* c, i64 c_row, i64 ahead) {
  using V = typename Vector<T>::type;
  using L = typename Vector<T>::loose;
  constexpr bool held = R * K <= 8;  // in registers for the whole run
  V x[R][K];
  if constexpr (held) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) x[r][k] = a[r * a_row + k * a_k] - V{};
  }
#pragma GCC unroll 1
  for (i64 n = 0; n < count; ++n, b += J * kLanes<T>, c += J * kLanes<T>) {
    V sum[R][J];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) sum[r][j] = *reinterpret_cast<const L*>(c + r * c_row + j * kLanes<T>);
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k) {
      __builtin_prefetch(b + k * b_k + ahead);
      V line[J];
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) line[j] = load_lanes<T>(b + k * b_k + j * kLanes<T>);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V y = held ? x[r][k] : a[r * a_row + k * a_k] - V{};
#pragma GCC unroll 8
        for (int j = 0; j < J; ++j) sum[r][j] = fused(y, line[j], sum[r][j]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) *reinterpret_cast<L*>(c + r * c_row + j * kLanes<T>) = sum[r][j];
  }
}

// The same vector by vector, the last of which may be a part of one, for what is left over at an edge: one loop that
// serves all edges compiles in no time.
template <class T, class B>
__attribute__((noinline, noclone)) void add_edge(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k,
                                                 const B* b, i64 b_k, T* c, i64 c_row) {
  using V = typename Vector<T>::type;
  for (i64 j = 0; j < columns; j += kLanes<T>) {
    const i64 n = least(kLanes<T>, columns - j);
    for (i64 r = 0; r < rows; ++r) {
      V sum = load_some<T>(c + r * c_row + j, n);
      for (i64 k = 0; k < depth; ++k) sum = fused(a[r * a_row + k * a_k] - V{}, load_some<T>(b + k * b_k + j, n), sum);
      store_some(c + r * c_row + j, sum, n);
    }
  }
}

// K lines over all columns: blocks of vectors, and what is left. At the end of a run the start of the
// next K lines is asked for, which no processor guesses.
template <int R, int J, int K, class T, class B>
inline void add_some_lines(i64 columns, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k, T* c, i64 c_row) {
  constexpr i64 lanes = kLanes<T>, step = J * lanes, far = kAheadBytes / i64(sizeof(B)) / step;
  const i64 count = columns / step, early = greatest(0, count - far), whole = count * step;
  for (i64 n = 0, part = 0; part < 2; ++part) {
    const i64 ahead = part ? K * b_k - early * step : far * step, stop = part ? count : early;
    add_lines<R, J, K>(stop - n, a, a_row, a_k, b + n * step, b_k, c + n * step, c_row, ahead);
    n = stop;
  }
  if (whole == columns) return;
  add_edge(R, columns - whole, K, a, a_row, a_k, b + whole, b_k, c + whole, c_row);
}

// The same where the elements of a column of b, and those of a row of a, are next to each other: dot products
// of R rows with N columns at a time.
template <int R, int N, class T, class B>
inline void add_dots(i64 depth, const T* a, i64 a_row, const B* b, i64 b_column, T* c, i64 c_row) {
  using V = typename Vector<T>::type;
  constexpr i64 lanes = kLanes<T>;
  constexpr int P = R * N >= kSums ? 1 : kSums / (R * N);  // sums side by side: an addition takes some cycles
  V sum[P][R][N];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) sum[p][r][n] = V{};
  const auto step = [&](i64 k, int p, const auto& load) __attribute__((always_inline)) {
    V x[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = load(a + r * a_row + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      if (R > 1 && p % (64 / int(lanes * sizeof(B))) == 0) __builtin_prefetch(b + (n + N) * b_column + k);
      const V y = load(b + n * b_column + k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[p][r][n] = fused(x[r], y, sum[p][r][n]);
    }
  };
  const auto whole = [](const auto* p) __attribute__((always_inline)) { return load_lanes<T>(p); };
  i64 k = 0;
  for (; k + P * lanes <= depth; k += P * lanes) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) step(k + p * lanes, p, whole);
  }
  for (; k + lanes <= depth; k += lanes) step(k, 0, whole);
  const i64 rest = depth - k;
  if (rest) step(k, 0, [rest](const auto* p) { return part_of<T>(p, rest); });
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      V all = sum[0][r][n];
#pragma GCC unroll 8
      for (int p = 1; p < P; ++p) all += sum[p][r][n];
      c[r * c_row + n] += sum_of_lanes(all);
    }
}

// The same for the columns that are left, one by one.
template <class T, class B>
__attribute__((noinline, noclone)) void add_rest(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, const B* b,
                                                 i64 b_column, T* c, i64 c_row) {
  for (i64 j = 0; j < columns; ++j)
    for (i64 r = 0; r < rows; ++r)
      add_dots<1, 1>(depth, a + r * a_row, a_row, b + j * b_column, b_column, c + r * c_row + j, c_row);
}

// c[i, j] += sum_k a[i, k] * b[k, j] for R rows. No element of b is read twice, and nothing is packed.
template <int R, class T, class B>
__attribute__((noinline)) void product_streamed(i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k, const B* b,
                                                i64 b_k, i64 b_column, T* c, i64 c_row) {
  if (b_column == 1) {
    constexpr int K = R == 1 || kLines < 8 ? kLines : 4;
    constexpr int J = R == 1 || kStep<T, B> < 2 ? kStep<T, B> : 2;
    i64 k = 0;
    for (; k + K <= depth; k += K)
      add_some_lines<R, J, K>(columns, a + k * a_k, a_row, a_k, b + k * b_k, b_k, c, c_row);
    return add_edge(R, columns, depth - k, a + k * a_k, a_row, a_k, b + k * b_k, b_k, c, c_row);
  }
  constexpr int N = kSums < 8 ? 2 : R == 1 ? 8 : R == 2 ? 4 : 2;
  i64 j = 0;
  for (; j + N <= columns; j += N) add_dots<R, N>(depth, a, a_row, b + j * b_column, b_column, c + j, c_row);
  add_rest(R, columns - j, depth, a, a_row, b + j * b_column, b_column, c + j, c_row);
}

// The same for up to four rows.
template <class T, class B>
inline void few_rows(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k,
                     i64 b_column, T* c, i64 c_row) {
  const auto streamed = [&](auto count) {
    product_streamed<count>(columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row);
    a += count * a_row, c += count * c_row;
  };
  if (rows >= 4) streamed(std::integral_constant<int, 4>{});
  if (rows % 4 >= 2) streamed(std::integral_constant<int, 2>{});
  if (rows % 2) streamed(std::integral_constant<int, 1>{});
}

}  // namespace cleave
