// What every generated C++ kernel stands on: element types, exact rounding, vector mathematics, scratch
// memory and the register-blocked product of two tiles.
//
// Element functions are branch-free, so that the compiler vectorises the loops that call them; there is no
// -ffast-math, and a multiplication and an addition fuse only where `fma` is written. NaN goes through
// everything. Tiles are dense and row-major over the extents of the moment.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
// glibc has these for vectors, up to 4 units in the last place off; a loop that is vectorised calls them. The names
// are our own: gcc would make one complex exponential of a sine and a cosine of the same number, and no vectors.
extern "C" {
__attribute__((simd("notinbranch"), const)) float many_sinf(float) noexcept __asm__("sinf");
__attribute__((simd("notinbranch"), const)) float many_cosf(float) noexcept __asm__("cosf");
__attribute__((simd("notinbranch"), const)) double many_sin(double) noexcept __asm__("sin");
__attribute__((simd("notinbranch"), const)) double many_cos(double) noexcept __asm__("cos");
}
#else
inline float many_sinf(float x) { return __builtin_sinf(x); }
inline float many_cosf(float x) { return __builtin_cosf(x); }
inline double many_sin(double x) { return __builtin_sin(x); }
inline double many_cos(double x) { return __builtin_cos(x); }
#endif

namespace cleave {

using i64 = std::int64_t;
using i32 = std::int32_t;
using i16 = std::int16_t;
using i8 = std::int8_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

constexpr float inf = __builtin_inff();
constexpr float nan = __builtin_nanf("");

// A stride that is known to be 1: loops are compiled once for it and once for any stride.
constexpr std::integral_constant<i64, 1> unit{};

template <class To, class From>
inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

// ------------------------------------------------------------------ sizes and positions

inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
inline i64 least(i64 a, i64 b) { return a < b ? a : b; }
inline i64 greatest(i64 a, i64 b) { return a > b ? a : b; }

// Down to a multiple of `tile` counted from `origin`, for either sign.
inline i64 align_down(i64 a, i64 tile, i64 origin) {
  const i64 d = a - origin;
  return origin + (d >= 0 ? d / tile : -ceil_div(-d, tile)) * tile;
}
inline i64 align_up(i64 a, i64 tile, i64 origin) { return align_down(a + tile - 1, tile, origin); }

// How many of `rows` rows with `work` elements each a block takes: at most `most`, and few enough that every thread
// has some blocks; all of them where another thread costs more than it brings.
constexpr i64 kAlone = 16384;
inline i64 rows_each(i64 rows, i64 work, i64 threads, i64 most) {
  if (threads <= 1 || rows * work < kAlone) return greatest(1, rows);
  return greatest(1, least(most, ceil_div(rows, 4 * threads)));
}

// A quarter of `n` in whole vectors of any machine: for four running values of a sum, as an addition takes longer
// than the next one takes to arrive.
inline i64 quarter(i64 n) { return n / 64 * 16; }

inline bool inside(i64 position, i64 size) { return position >= 0 && position < size; }

// ------------------------------------------------------------------ narrow floats

inline float widen_bf16(u16 x) { return bits<float>(u32(x) << 16); }

inline u16 narrow_bf16(float x) {  // to nearest even; NaN stays NaN
  const u32 u = bits<u32>(x);
  const u32 r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return u16(x != x ? 0x7fc0 : r);
}

inline float round_bf16(float x) {
  const u32 u = bits<u32>(x);
  const float r = bits<float>((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
  return x != x ? x : r;
}

inline float widen_f16(u16 h) {
  const u32 magnitude = u32(h & 0x7fff) << 13;
  const float x = bits<float>(magnitude) * 0x1p112f;  // moves the exponent, subnormals too
  const float y = magnitude >= (u32(0x7c00) << 13) ? bits<float>(magnitude | 0x7f800000u) : x;
  return bits<float>(bits<u32>(y) | (u32(h & 0x8000) << 16));
}

// To the nearest value of float16, to even, as a float. Adding and taking off a number whose last place is
// float16's last place at this exponent rounds there.
inline float round_f16(float x) {
  const u32 u = bits<u32>(x) & 0x7fffffffu;
  const u32 sign = bits<u32>(x) & 0x80000000u;
  const u32 exponent = u & 0x7f800000u;
  const u32 least_exponent = exponent < 0x38800000u ? 0x38800000u : exponent;
  const float magic = bits<float>(least_exponent + (13u << 23));
  const float a = bits<float>(u);
  float r = (a + magic) - magic;
  r = a >= 65520.0f ? inf : r;
  r = x != x ? a : r;
  return bits<float>(bits<u32>(r) | sign);
}

inline u16 narrow_f16(float x) {
  const float r = round_f16(x);
  const u32 u = bits<u32>(r) & 0x7fffffffu;
  const u32 sign = (bits<u32>(r) >> 16) & 0x8000u;
  const u32 normal = (u - 0x38000000u) >> 13;
  const u32 small = bits<u32>(bits<float>(u) + 0.5f) - 0x3f000000u;  // units of 2^-24
  const u32 h = u >= 0x7f800000u ? (u > 0x7f800000u ? 0x7e00u : 0x7c00u) : u < 0x38800000u ? small : normal;
  return u16(sign | h);
}

struct bf16 {
  u16 raw;
  operator float() const { return widen_bf16(raw); }
  bf16& operator=(float x) { return raw = narrow_bf16(x), *this; }
};

struct f16 {
  u16 raw;
  operator float() const { return widen_f16(raw); }
  f16& operator=(float x) { return raw = narrow_f16(x), *this; }
};

// ------------------------------------------------------------------ element functions

// One rounding where the machine has the instruction; the library's emulation would be slow.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
inline float fma(float a, float b, float c) { return a * b + c; }
inline double fma(double a, double b, double c) { return a * b + c; }
#endif

// NaN wins over everything else.
template <class T>
inline T max(T a, T b) {
  const T r = a > b ? a : b;
  return a != a ? a : r;
}
template <class T>
inline T min(T a, T b) {
  const T r = a < b ? a : b;
  return a != a ? a : r;
}
#pragma omp declare reduction(top : float, double : omp_out = max(omp_out, omp_in)) initializer(omp_priv = -inf)
#pragma omp declare reduction(bottom : float, double : omp_out = min(omp_out, omp_in)) initializer(omp_priv = inf)

inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline double sqrt(double x) { return __builtin_sqrt(x); }
inline float floor(float x) { return __builtin_floorf(x); }
inline double floor(double x) { return __builtin_floor(x); }
inline float ceil(float x) { return __builtin_ceilf(x); }
inline double ceil(double x) { return __builtin_ceil(x); }
inline float round(float x) { return __builtin_rintf(x); }  // half to even
inline double round(double x) { return __builtin_rint(x); }
inline float trunc(float x) { return __builtin_truncf(x); }
inline double trunc(double x) { return __builtin_trunc(x); }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
template <class T>
inline T abs(T x) { return x < 0 ? T(-x) : x; }
template <class T>
inline T sign(T x) { return T(x > 0) - T(x < 0); }  // 0 for NaN, as in PyTorch

// 2^n * e^r with |r| <= ln 2 / 2; 2^n in two factors, so that results below the normal range round once.
// `shifted` is n + 1.5 * 2^23: its last bits are n.
inline float scaled_exp(float r, float shifted) {
  float p = 1.37805939e-3f;
  p = fma(p, r, 8.37312452e-3f);
  p = fma(p, r, 4.16695364e-2f);
  p = fma(p, r, 1.66664720e-1f);
  p = fma(p, r, 4.99999851e-1f);
  p = fma(p, r, 1.0f);
  p = fma(p, r, 1.0f);
  const u32 biased = bits<u32>(shifted) - (0x4b400000u - 254u);
  const u32 half = biased >> 1;
  return p * bits<float>(half << 23) * bits<float>((biased - half) << 23);
}
// x is held in [-105, 89] by its bits, which takes one instruction each and loses only NaN.
inline float exp(float x) {
  const i32 low = i32(bits<u32>(x)) < i32(0x42b20000) ? i32(bits<u32>(x)) : i32(0x42b20000);
  const float held = bits<float>(u32(low) < 0xc2d20000u ? u32(low) : 0xc2d20000u);
  const float shifted = fma(held, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, held));
  const float y = scaled_exp(r, shifted);
  return x != x ? x : y;
}
inline double exp(double x) { return __builtin_exp(x); }
inline float exp2(float x) {
  const float low = x < 129.0f ? x : 129.0f;
  const float held = low > -152.0f ? low : -152.0f;
  const float shifted = held + 12582912.0f;
  const float y = scaled_exp((held - (shifted - 12582912.0f)) * 0.693147181f, shifted);
  return x != x ? x : y;
}
inline double exp2(double x) { return __builtin_exp2(x); }

// log x = n log 2 + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
inline float log(float x) {
  const bool small = x < 0x1p-126f;
  const float scaled = small ? x * 0x1p23f : x;
  const u32 shifted = bits<u32>(scaled) - 0x3f3504f3u;
  const float n = float(i32(shifted) >> 23) + (small ? -23.0f : 0.0f);
  const float f = bits<float>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float z = f * f;
  float p = 7.0376836292e-2f;
  p = fma(p, f, -1.1514610310e-1f);
  p = fma(p, f, 1.1676998740e-1f);
  p = fma(p, f, -1.2420140846e-1f);
  p = fma(p, f, 1.4249322787e-1f);
  p = fma(p, f, -1.6668057665e-1f);
  p = fma(p, f, 2.0000714765e-1f);
  p = fma(p, f, -2.4999993993e-1f);
  p = fma(p, f, 3.3333331174e-1f);
  float y = f * z * p;
  y = fma(n, -2.12194440e-4f, y);
  y = fma(-0.5f, z, y);
  y = fma(n, 0.693359375f, f + y);
  y = x == 0.0f ? -inf : y;
  y = x < 0.0f ? nan : y;
  return x < inf ? y : x;  // +inf and NaN as they are
}
inline double log(double x) { return __builtin_log(x); }

inline float tanh(float x) {
  const float a = abs(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = fma(p, z, 2.06390887954e-2f);
  p = fma(p, z, -5.37397155531e-2f);
  p = fma(p, z, 1.33314422036e-1f);
  p = fma(p, z, -3.33332819422e-1f);
  const float near = fma(p * z, x, x);
  const float far = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  const float y = bits<float>(bits<u32>(far) | (bits<u32>(x) & 0x80000000u));
  return a < 0.625f ? near : y;
}
inline double tanh(double x) { return __builtin_tanh(x); }

inline float erf(float x) {
  const float t = abs(x);
  const float s = x * x;
  const float c = t > 4.0f ? 4.0f : t;  // erf(4) rounds to 1
  float r = fma(-1.72853470e-5f, c, 3.83197126e-4f);
  r = fma(r, c * c, fma(-3.88396438e-3f, c, 2.42546219e-2f));
  r = fma(r, c, -1.06777877e-1f);
  r = fma(r, c, -6.34846687e-1f);
  r = fma(r, c, -1.28717512e-1f);
  r = fma(r, c, -c);
  const float far = bits<float>(bits<u32>(1.0f - exp(r)) | (bits<u32>(x) & 0x80000000u));
  float p = -5.96761703e-4f;
  p = fma(p, s, 4.99119423e-3f);
  p = fma(p, s, -2.67681349e-2f);
  p = fma(p, s, 1.12819925e-1f);
  p = fma(p, s, -3.76125336e-1f);
  p = fma(p, s, 1.28379166e-1f);
  const float near = fma(p, x, x);
  return t > 0.921875f ? far : near;
}
inline double erf(double x) { return __builtin_erf(x); }

inline float sin(float x) { return many_sinf(x); }
inline double sin(double x) { return many_sin(x); }
inline float cos(float x) { return many_cosf(x); }
inline double cos(double x) { return many_cos(x); }
inline float pow(float a, float b) { return __builtin_powf(a, b); }
inline double pow(double a, double b) { return __builtin_pow(a, b); }

// The quotient rounded down and its remainder, which has the divisor's sign. An integer divided by zero is 0.
inline float mod(float a, float b) {
  const float m = __builtin_fmodf(a, b);
  return m != 0.0f && (m < 0.0f) != (b < 0.0f) ? m + b : m;
}
inline double mod(double a, double b) {
  const double m = __builtin_fmod(a, b);
  return m != 0.0 && (m < 0.0) != (b < 0.0) ? m + b : m;
}
template <class T>
inline T divide(T a, T b) {
  return b == 0 ? T(0) : std::is_signed_v<T> && b == T(-1) ? T(0 - a) : T(a / b);
}
template <class T>
inline T mod(T a, T b) {
  if (b == 0 || (std::is_signed_v<T> && b == T(-1))) return 0;
  const T m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? T(m + b) : m;
}
template <class T>
inline T floordiv(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    // As Python and PyTorch do it: from the remainder, so that an infinite divisor gives -1 and not NaN.
    if (b == 0) return a / b;
    const T rest = std::is_same_v<T, float> ? T(__builtin_fmodf(a, b)) : T(__builtin_fmod(a, b));
    T q = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) q -= 1;
    if (q == 0) return __builtin_copysign(T(0), a / b);
    const T down = __builtin_floor(q);
    return q - down > T(0.5) ? down + 1 : down;
  } else {
    const T q = divide(a, b);
    return b != 0 && mod(a, b) != 0 && (a < 0) != (b < 0) ? T(q - 1) : q;
  }
}
template <class T>
inline T pow(T a, T b) {
  if (b < 0) return a == 1 ? T(1) : a == T(-1) ? T(b % 2 ? -1 : 1) : T(0);
  T r = 1;
  for (; b; b /= 2, a = T(a * a)) r = b % 2 ? T(r * a) : r;
  return r;
}

// ------------------------------------------------------------------ scratch memory

// One buffer per thread, kept for the next block; null if there is no memory.
struct Scratch {
  void* memory = nullptr;
  i64 size = 0;
  ~Scratch() { std::free(memory); }
  char* room(i64 wanted) {
    if (wanted > size) {
      std::free(memory);
      memory = std::aligned_alloc(64, (wanted + 63) / 64 * 64);
      size = memory ? wanted : 0;
    }
    return static_cast<char*>(memory);
  }
};
inline thread_local Scratch scratch;

template <class T>
inline T* tile(char* memory, i64 offset) {
  return reinterpret_cast<T*>(memory + offset);
}

// Fresh memory of many pages is taken in large ones: the first store to a page costs more than filling it.
inline void fresh(void* memory, i64 bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t page = 2 << 20;
  if (bytes < i64(4 * page)) return;
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const std::uintptr_t last = (reinterpret_cast<std::uintptr_t>(memory) + std::uintptr_t(bytes)) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: it may fail
#endif
}

// ------------------------------------------------------------------ the product of two tiles

#if defined(__AVX512F__)
constexpr int kBytes = 64;
constexpr int kRows = 8;
#elif defined(__AVX2__) || defined(__AVX__)
constexpr int kBytes = 32;
constexpr int kRows = 6;
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
#elif defined(__clang__)
#pragma clang fp contract(fast)
  return a * b + c;
#else
  V r;
  for (unsigned l = 0; l < sizeof(V) / sizeof(a[0]); ++l) r[l] = fma(a[l], b[l], c[l]);
  return r;
#endif
}

// c[r, 0:n] (+)= sum_k a[r, k] * panel[k, :] for R rows; `panel` is dense with kColumns columns, zero beyond n.
template <int R, class T>
inline void product_rows(i64 depth, const T* a, i64 a_row, i64 a_k, const T* panel, T* c, i64 c_row, i64 n,
                         bool add) {
  using V = typename Vector<T>::type;
  using L = typename Vector<T>::loose;
  V sum[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = V{};
  for (i64 k = 0; k < depth; ++k) {
    const V b0 = *reinterpret_cast<const L*>(panel + k * kColumns<T>);
    const V b1 = *reinterpret_cast<const L*>(panel + k * kColumns<T> + kLanes<T>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V x = a[r * a_row + k * a_k] - V{};  // in every lane
      sum[r][0] = fused(x, b0, sum[r][0]);
      sum[r][1] = fused(x, b1, sum[r][1]);
    }
  }
  if (n == kColumns<T>) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      L* out = reinterpret_cast<L*>(c + r * c_row);
      out[0] = add ? out[0] + sum[r][0] : sum[r][0];
      out[1] = add ? out[1] + sum[r][1] : sum[r][1];
    }
    return;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    T row[kColumns<T>];
    reinterpret_cast<L*>(row)[0] = sum[r][0];
    reinterpret_cast<L*>(row)[1] = sum[r][1];
    for (i64 j = 0; j < n; ++j) c[r * c_row + j] = add ? c[r * c_row + j] + row[j] : row[j];
  }
}

template <class T>
__attribute__((noinline)) void product_panel(i64 rows, i64 depth, const T* a, i64 a_row, i64 a_k, const T* panel, T* c, i64 c_row,
                          i64 n, bool add) {
  i64 r = 0;
  for (; r + kRows <= rows; r += kRows)
    product_rows<kRows>(depth, a + r * a_row, a_row, a_k, panel, c + r * c_row, c_row, n, add);
  const auto rest = [&](auto count) {
    product_rows<count>(depth, a + r * a_row, a_row, a_k, panel, c + r * c_row, c_row, n, add);
    r += count;
  };
  if (rows - r >= 4) rest(std::integral_constant<int, 4>{});
  if (rows - r >= 2) rest(std::integral_constant<int, 2>{});
  if (rows - r >= 1) rest(std::integral_constant<int, 1>{});
}

#if defined(__AVX__)
typedef float float8 __attribute__((vector_size(32)));
typedef float float8_loose __attribute__((vector_size(32), aligned(4), may_alias));
typedef u16 u16x8 __attribute__((vector_size(16)));
typedef u32 u32x8 __attribute__((vector_size(32)));

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

// panel[k, j] = b[j, k] for 8 rows of b and 8 of k.
template <class B>
inline void transpose8(const B* b, i64 row, float* panel, i64 panel_row) {
  const float8 r0 = load8(b), r1 = load8(b + row), r2 = load8(b + 2 * row), r3 = load8(b + 3 * row);
  const float8 r4 = load8(b + 4 * row), r5 = load8(b + 5 * row), r6 = load8(b + 6 * row), r7 = load8(b + 7 * row);
#define CLEAVE_LOW(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 4, 12, 5, 13)
#define CLEAVE_HIGH(x, y) __builtin_shufflevector(x, y, 2, 10, 3, 11, 6, 14, 7, 15)
  const float8 a0 = CLEAVE_LOW(r0, r1), a1 = CLEAVE_HIGH(r0, r1), a2 = CLEAVE_LOW(r2, r3), a3 = CLEAVE_HIGH(r2, r3);
  const float8 a4 = CLEAVE_LOW(r4, r5), a5 = CLEAVE_HIGH(r4, r5), a6 = CLEAVE_LOW(r6, r7), a7 = CLEAVE_HIGH(r6, r7);
#undef CLEAVE_LOW
#undef CLEAVE_HIGH
#define CLEAVE_EVEN(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define CLEAVE_ODD(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
  const float8 b0 = CLEAVE_EVEN(a0, a2), b1 = CLEAVE_ODD(a0, a2), b2 = CLEAVE_EVEN(a1, a3), b3 = CLEAVE_ODD(a1, a3);
  const float8 b4 = CLEAVE_EVEN(a4, a6), b5 = CLEAVE_ODD(a4, a6), b6 = CLEAVE_EVEN(a5, a7), b7 = CLEAVE_ODD(a5, a7);
#undef CLEAVE_EVEN
#undef CLEAVE_ODD
  const auto put = [&](int k, float8 x, float8 y, bool high) {
    *reinterpret_cast<float8_loose*>(panel + k * panel_row) =
        high ? __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)
             : __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11);
  };
  put(0, b0, b4, false), put(1, b1, b5, false), put(2, b2, b6, false), put(3, b3, b7, false);
  put(4, b0, b4, true), put(5, b1, b5, true), put(6, b2, b6, true), put(7, b3, b7, true);
}
#endif

// panel[k, j] = b[k, j] for j < n, zero beyond.
template <class T, class B>
__attribute__((noinline)) void pack_panel(i64 depth, const B* b, i64 b_k, i64 b_column, i64 n, T* panel) {
  constexpr i64 W = kColumns<T>;
  i64 j0 = 0;
#if defined(__AVX__)
  if constexpr (std::is_same_v<T, float> && !std::is_same_v<B, double>) {
    if (b_k == 1) {
      for (; j0 + 8 <= n; j0 += 8) {
        const B* from = b + j0 * b_column;
        i64 k = 0;
        for (; k + 8 <= depth; k += 8) transpose8(from + k, b_column, panel + k * W + j0, W);
        for (; k < depth; ++k)
          for (i64 j = 0; j < 8; ++j) panel[k * W + j0 + j] = T(from[k + j * b_column]);
      }
      if (j0 == W) return;
    }
  }
#endif
  for (i64 k = 0; k < depth; ++k) {
    for (i64 j = j0; j < n; ++j) panel[k * W + j] = T(b[k * b_k + j * b_column]);
    for (i64 j = n; j < W; ++j) panel[k * W + j] = T(0);
  }
}

// ------------------------------------------------------------------ few rows: b is read once, as it lies

#if defined(__SANITIZE_ADDRESS__)  // every access is checked: less text, or the compiler takes minutes
constexpr int kLines = 2, kSums = 2;
#else
constexpr int kLines = 8, kSums = 8;
#endif

// kLanes<T> elements that lie next to each other, as T.
template <class T, class B>
inline typename Vector<T>::type load_lanes(const B* p) {
  using V = typename Vector<T>::type;
  if constexpr (std::is_same_v<T, B>) return *reinterpret_cast<const typename Vector<T>::loose*>(p);
#if defined(__AVX__)
  if constexpr (std::is_same_v<T, float> && kBytes == 32 && sizeof(B) == 2) return load8(p);
#endif
  V x;
#pragma GCC unroll 16
  for (int l = 0; l < kLanes<T>; ++l) x[l] = T(p[l]);
  return x;
}

template <class V>
inline auto sum_of_lanes(V x) {
  auto sum = x[0];
  for (unsigned l = 1; l < sizeof(V) / sizeof(x[0]); ++l) sum += x[l];
  return sum;
}

// c[r, j] += sum_k a[r, k] * b[k, j] for R rows, J vectors of columns and K lines of b, where columns are next to
// each other.
template <int R, int J, int K, class T, class B>
inline __attribute__((always_inline)) void add_block(const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k, T* c,
                                                     i64 c_row) {
  using V = typename Vector<T>::type;
  using L = typename Vector<T>::loose;
  V sum[R][J];
#pragma GCC unroll 8
  for (int k = 0; k < K; ++k) {
    V line[J];
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) {
      if (j % (64 / int(kLanes<T> * sizeof(B))) == 0) __builtin_prefetch(b + (k + K) * b_k + j * kLanes<T>);
      line[j] = load_lanes<T>(b + k * b_k + j * kLanes<T>);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V x = a[r * a_row + k * a_k] - V{};  // in every lane
#pragma GCC unroll 8
      for (int j = 0; j < J; ++j) sum[r][j] = k ? fused(x, line[j], sum[r][j]) : x * line[j];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int j = 0; j < J; ++j) *reinterpret_cast<L*>(c + r * c_row + j * kLanes<T>) += sum[r][j];
}

// The same without registers for sums: what is left over at an edge.
template <class T, class B>
inline void add_edge(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k, const B* b, i64 b_k, T* c,
                     i64 c_row) {
  for (i64 r = 0; r < rows; ++r)
    for (i64 k = 0; k < depth; ++k) {
      const T x = a[r * a_row + k * a_k];
#pragma omp simd
      for (i64 j = 0; j < columns; ++j) c[r * c_row + j] = fma(x, T(b[k * b_k + j]), c[r * c_row + j]);
    }
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
  const auto step = [&](i64 k, int p) __attribute__((always_inline)) {
    V x[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) x[r] = load_lanes<T>(a + r * a_row + k);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      if (p % (64 / int(lanes * sizeof(B))) == 0) __builtin_prefetch(b + (n + N) * b_column + k);
      const V y = load_lanes<T>(b + n * b_column + k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[p][r][n] = fused(x[r], y, sum[p][r][n]);
    }
  };
  i64 k = 0;
  for (; k + P * lanes <= depth; k += P * lanes) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) step(k + p * lanes, p);
  }
  for (; k + lanes <= depth; k += lanes) step(k, 0);
  T total[R][N];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      V all = sum[0][r][n];
#pragma GCC unroll 8
      for (int p = 1; p < P; ++p) all += sum[p][r][n];
      total[r][n] = sum_of_lanes(all);
    }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) {
      for (i64 rest = k; rest < depth; ++rest)
        total[r][n] = fma(a[r * a_row + rest], T(b[n * b_column + rest]), total[r][n]);
      c[r * c_row + n] += total[r][n];
    }
}

// c[i, j] += sum_k a[i, k] * b[k, j] for R rows. No element of b is read twice, and nothing is packed.
template <int R, class T, class B>
__attribute__((noinline)) void product_streamed(i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k, const B* b,
                                                i64 b_k, i64 b_column, T* c, i64 c_row) {
  if (b_column == 1) {
    constexpr int K = kLines;
    constexpr int J = R == 1 ? 4 : 2;
    const i64 whole = columns / (J * kLanes<T>) * (J * kLanes<T>);
    i64 k = 0;
    for (; k + K <= depth; k += K) {
      for (i64 j = 0; j < whole; j += J * kLanes<T>)
        add_block<R, J, K>(a + k * a_k, a_row, a_k, b + k * b_k + j, b_k, c + j, c_row);
      add_edge(R, columns - whole, K, a + k * a_k, a_row, a_k, b + k * b_k + whole, b_k, c + whole, c_row);
    }
    add_edge(R, columns, depth - k, a + k * a_k, a_row, a_k, b + k * b_k, b_k, c, c_row);
    return;
  }
  constexpr int N = R > 2 || kSums < 8 ? 2 : 4;
  i64 j = 0;
  for (; j + N <= columns; j += N) add_dots<R, N>(depth, a, a_row, b + j * b_column, b_column, c + j, c_row);
  for (; j < columns; ++j)
    for (int r = 0; r < R; ++r) {
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (i64 k = 0; k < depth; ++k) sum += a[r * a_row + k] * T(b[j * b_column + k]);
      c[r * c_row + j] += sum;
    }
}

constexpr i64 kDepth = 256;  // of a panel: it stays in the first-level cache
constexpr i64 kPanels = 4;   // packed together: whole lines of a row that lie next to each other
constexpr i64 kFewRows = 4;  // for which packing does not pay

// Panels of full width, where columns are next to each other: row by row.
template <class T, class B>
__attribute__((noinline)) void pack_rows(i64 depth, const B* b, i64 b_k, i64 panels, T* panel) {
  constexpr i64 W = kColumns<T>;
  for (i64 k = 0; k < depth; ++k)
    for (i64 p = 0; p < panels; ++p) {
#pragma omp simd
      for (i64 j = 0; j < W; ++j) panel[(p * depth + k) * W + j] = T(b[k * b_k + p * W + j]);
    }
}

// c[i, j] (+)= sum_k a[i, k] * b[k, j]; the columns of c are next to each other. `panel` has room for
// kPanels * kDepth * kColumns elements.
template <class T, class B>
__attribute__((noinline)) void product(i64 rows, i64 columns, i64 depth, const T* a, i64 a_row, i64 a_k,
                                       const B* b, i64 b_k, i64 b_column, T* c, i64 c_row, bool add, T* panel) {
  constexpr i64 W = kColumns<T>;
  if (rows <= kFewRows && (b_column == 1 || (b_k == 1 && a_k == 1))) {
    if (!add)
      for (i64 r = 0; r < rows; ++r)
        for (i64 j = 0; j < columns; ++j) c[r * c_row + j] = 0;
    const auto streamed = [&](auto count) {
      product_streamed<count>(columns, depth, a, a_row, a_k, b, b_k, b_column, c, c_row);
      a += count * a_row, c += count * c_row;
    };
    if (rows >= 4) streamed(std::integral_constant<int, 4>{});
    if (rows % 4 >= 2) streamed(std::integral_constant<int, 2>{});
    if (rows % 2) streamed(std::integral_constant<int, 1>{});
    return;
  }
  for (i64 k = 0; k == 0 || k < depth; k += kDepth) {
    const i64 part = least(kDepth, depth - k);
    const T* const a_part = a + k * a_k;
    const B* const b_part = b + k * b_k;
    i64 j = 0;
    while (j < columns) {
      const i64 panels = b_column == 1 ? least(kPanels, (columns - j) / W) : 0;
      if (panels > 0) {
        pack_rows(part, b_part + j, b_k, panels, panel);
        for (i64 p = 0; p < panels; ++p, j += W)
          product_panel(rows, part, a_part, a_row, a_k, panel + p * part * W, c + j, c_row, W, add || k > 0);
      } else {
        const i64 n = least(W, columns - j);
        pack_panel(part, b_part + j * b_column, b_k, b_column, n, panel);
        product_panel(rows, part, a_part, a_row, a_k, panel, c + j, c_row, n, add || k > 0);
        j += W;
      }
    }
  }
}

}  // namespace cleave
