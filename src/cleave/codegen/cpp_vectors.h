// Vectors of the machine that the compiler builds for: AVX-512, AVX2, else 16 bytes (SSE2, NEON). Loads that
// widen, products that fuse where the machine can, and transposition in registers.
#pragma once

#include "cpp_base.h"
#include "cpp_maths.h"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace cleave {

// kRows: rows of a register block of products, two vectors wide; sums, two vectors and a broadcast fill the registers.
#if defined(__AVX512F__)
constexpr int kBytes = 64;
constexpr int kRows = 12;
#elif defined(__AVX2__) || defined(__AVX__)
constexpr int kBytes = 32;
constexpr int kRows = 6;
#elif defined(__aarch64__)
constexpr int kBytes = 16;
constexpr int kRows = 12;
#else
constexpr int kBytes = 16;
constexpr int kRows = 6;
#endif

template <class T>
struct Vector;
template <>
struct Vector<float> {
  typedef float type __attribute__((vector_size(kBytes)));
  typedef float loose __attribute__((vector_size(kBytes), aligned(4), may_alias));
};
template <>
struct Vector<double> {
  typedef double type __attribute__((vector_size(kBytes)));
  typedef double loose __attribute__((vector_size(kBytes), aligned(8), may_alias));
};
template <class T>
constexpr int kLanes = kBytes / int(sizeof(T));
template <class T>
constexpr int kColumns = 2 * kLanes<T>;

template <class V>
inline V fused(V a, V b, V c) {
#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
  if constexpr (sizeof(a[0]) == 4)
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
  else
    return __builtin_ia32_vfmaddpd512_mask(a, b, c, -1, 4);
#elif defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
  if constexpr (sizeof(a[0]) == 4)
    return __builtin_ia32_vfmaddps256(a, b, c);
  else
    return __builtin_ia32_vfmaddpd256(a, b, c);
#elif defined(__aarch64__) && defined(__ARM_NEON)
  if constexpr (sizeof(a[0]) == 4)
    return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
  else
    return (V)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#elif defined(__clang__)
#pragma clang fp contract(fast)
  return a * b + c;
#else
  return a * b + c;
#endif
}

// ------------------------------------------------------------------ loads that widen

typedef u16 u16s __attribute__((vector_size(kBytes / 2)));
typedef u32 u32s __attribute__((vector_size(kBytes)));

// kLanes<T> elements that lie next to each other, as T.
template <class T, class B>
inline typename Vector<T>::type load_lanes(const B* p) {
  using V = typename Vector<T>::type;
  if constexpr (std::is_same_v<T, B>) {
    return *reinterpret_cast<const typename Vector<T>::loose*>(p);
  } else if constexpr (std::is_same_v<T, float> && std::is_same_v<B, bf16>) {
    u16s raw;
    __builtin_memcpy(&raw, p, sizeof raw);
    return reinterpret_cast<V>(__builtin_convertvector(raw, u32s) << 16);
  } else {
#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__)
    typedef short i16s __attribute__((vector_size(kBytes / 2)));
    if constexpr (std::is_same_v<T, float> && std::is_same_v<B, f16>) {
      i16s raw;
      __builtin_memcpy(&raw, p, sizeof raw);
#if defined(__AVX512F__)
      typedef long long i64s __attribute__((vector_size(kBytes / 2)));
      return __builtin_ia32_vcvtph2ps512_mask(reinterpret_cast<__attribute__((vector_size(32))) short>(raw), V{}, -1, 4);
#else
      return __builtin_ia32_vcvtph2ps256(raw);
#endif
    }
#endif
    V x;
#pragma GCC unroll 16
    for (int l = 0; l < kLanes<T>; ++l) x[l] = T(p[l]);
    return x;
  }
}

// ------------------------------------------------------------------ parts of vectors

// The first n < most elements in pieces of 8, 4, 2 and 1: no loop over single ones.
template <int most, class B>
inline void copy_some(B* to, const B* from, i64 n) {
  if constexpr (most > 1) {
    constexpr int piece = most / 2;
    if (n & piece) __builtin_memcpy(to, from, piece * sizeof(B)), to += piece, from += piece;
    copy_some<piece>(to, from, n);
  }
}

#if defined(__AVX__) && defined(__GNUC__) && !defined(__clang__)
#define CLEAVE_MASKS 1  // instructions that leave what is behind the first n elements alone
typedef i32 i32x8 __attribute__((vector_size(32)));
typedef long long i64x4 __attribute__((vector_size(32)));
#if !defined(__AVX512F__)
inline i32x8 first_of(i64 n, float) { return i32x8{0, 1, 2, 3, 4, 5, 6, 7} < i32(n); }
inline i64x4 first_of(i64 n, double) { return i64x4{0, 1, 2, 3} < (long long)(n); }
#endif
#endif

// The first n < kLanes<T> elements that lie next to each other, as T, and zero beyond; what is behind them is not
// touched.
template <class T, class B>
inline typename Vector<T>::type part_of(const B* p, i64 n) {
  using V = typename Vector<T>::type;
#if defined(CLEAVE_MASKS)
  if constexpr (std::is_same_v<T, float> && std::is_same_v<B, float>) {
#if defined(__AVX512F__)
    return __builtin_ia32_loadups512_mask(p, V{}, u16((1u << n) - 1));
#else
    return __builtin_ia32_maskloadps256(reinterpret_cast<const V*>(p), first_of(n, T()));
#endif
  }
  if constexpr (std::is_same_v<T, double> && std::is_same_v<B, double>) {
#if defined(__AVX512F__)
    return __builtin_ia32_loadupd512_mask(p, V{}, u8((1u << n) - 1));
#else
    return __builtin_ia32_maskloadpd256(reinterpret_cast<const V*>(p), first_of(n, T()));
#endif
  }
#endif
  B row[kLanes<T>] = {};
  copy_some<kLanes<T>>(row, p, n);
  return load_lanes<T>(row);
}

// The same, or all of a vector.
template <class T, class B>
inline typename Vector<T>::type load_some(const B* p, i64 n) {
  return n < kLanes<T> ? part_of<T>(p, n) : load_lanes<T>(p);
}

// The first n elements of x to where they lie next to each other.
template <class T>
inline void store_some(T* p, typename Vector<T>::type x, i64 n) {
  using V = typename Vector<T>::type;
  using L = typename Vector<T>::loose;
  if (n >= kLanes<T>) {
    *reinterpret_cast<L*>(p) = x;
    return;
  }
#if defined(CLEAVE_MASKS) && defined(__AVX512F__)
  if constexpr (sizeof(T) == 4)
    __builtin_ia32_storeups512_mask(p, x, u16((1u << n) - 1));
  else
    __builtin_ia32_storeupd512_mask(p, x, u8((1u << n) - 1));
#elif defined(CLEAVE_MASKS)
  if constexpr (sizeof(T) == 4)
    __builtin_ia32_maskstoreps256(reinterpret_cast<V*>(p), first_of(n, T()), x);
  else
    __builtin_ia32_maskstorepd256(reinterpret_cast<V*>(p), first_of(n, T()), x);
#else
  T row[kLanes<T>];
  *reinterpret_cast<L*>(row) = x;
  copy_some<kLanes<T>>(p, row, n);
#endif
}

template <class V>
inline auto sum_of_lanes(V x) {
  auto sum = x[0];
  for (unsigned l = 1; l < sizeof(V) / sizeof(x[0]); ++l) sum += x[l];
  return sum;
}

// ------------------------------------------------------------------ transposition

#if defined(__AVX__)
#define CLEAVE_TRANSPOSES 1
typedef float float8 __attribute__((vector_size(32)));
typedef float float8_loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef u16 u16x8 __attribute__((vector_size(16)));
typedef u32 u32x8 __attribute__((vector_size(32)));

#if defined(__clang__) || __GNUC__ >= 12
#define CLEAVE_PICK(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define CLEAVE_PICK(x, y, ...) __builtin_shuffle(x, y, i32x8{__VA_ARGS__})
#endif

inline float8 load8(const float* p) { return *reinterpret_cast<const float8_loose*>(p); }
inline float8 load8(const bf16* p) {
  u16x8 raw;
  __builtin_memcpy(&raw, p, sizeof raw);
  return reinterpret_cast<float8>(__builtin_convertvector(raw, u32x8) << 16);
}
inline float8 load8(const f16* p) {
#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__)
  typedef short i16x8 __attribute__((vector_size(16)));
  i16x8 raw;
  __builtin_memcpy(&raw, p, sizeof raw);
  return __builtin_ia32_vcvtph2ps256(raw);
#endif
  float8 x;
  for (int l = 0; l < 8; ++l) x[l] = p[l];
  return x;
}

// to[k, j] = from[j][k] for 8 rows and 8 of k.
template <class B>
inline void transpose8(const B* const (&from)[8], float* to, i64 to_row) {
  const float8 r0 = load8(from[0]), r1 = load8(from[1]), r2 = load8(from[2]), r3 = load8(from[3]);
  const float8 r4 = load8(from[4]), r5 = load8(from[5]), r6 = load8(from[6]), r7 = load8(from[7]);
#define CLEAVE_LOW(x, y) CLEAVE_PICK(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define CLEAVE_HIGH(x, y) CLEAVE_PICK(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
  const float8 a0 = CLEAVE_LOW(r0, r1), a1 = CLEAVE_HIGH(r0, r1), a2 = CLEAVE_LOW(r2, r3), a3 = CLEAVE_HIGH(r2, r3);
  const float8 a4 = CLEAVE_LOW(r4, r5), a5 = CLEAVE_HIGH(r4, r5), a6 = CLEAVE_LOW(r6, r7), a7 = CLEAVE_HIGH(r6, r7);
#undef CLEAVE_LOW
#undef CLEAVE_HIGH
#define CLEAVE_EVEN(x, y) CLEAVE_PICK(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define CLEAVE_ODD(x, y) CLEAVE_PICK(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
  const float8 b0 = CLEAVE_EVEN(a0, a2), b1 = CLEAVE_ODD(a0, a2), b2 = CLEAVE_EVEN(a1, a3), b3 = CLEAVE_ODD(a1, a3);
  const float8 b4 = CLEAVE_EVEN(a4, a6), b5 = CLEAVE_ODD(a4, a6), b6 = CLEAVE_EVEN(a5, a7), b7 = CLEAVE_ODD(a5, a7);
#undef CLEAVE_EVEN
#undef CLEAVE_ODD
  const auto put = [&](int k, float8 x, float8 y, bool high) {
    *reinterpret_cast<float8_loose*>(to + k * to_row) =
        high ? CLEAVE_PICK(x, y, 4, 5, 6, 7, 12, 13, 14, 15) : CLEAVE_PICK(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
  };
  put(0, b0, b4, false), put(1, b1, b5, false), put(2, b2, b6, false), put(3, b3, b7, false);
  put(4, b0, b4, true), put(5, b1, b5, true), put(6, b2, b6, true), put(7, b3, b7, true);
}

template <class B>
inline void transpose8(const B* from, i64 row, float* to, i64 to_row) {
  const B* const rows[8] = {from,           from + row,     from + 2 * row, from + 3 * row,
                            from + 4 * row, from + 5 * row, from + 6 * row, from + 7 * row};
  transpose8(rows, to, to_row);
}
#endif

}  // namespace cleave
