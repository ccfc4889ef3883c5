// Element functions: branch-free, so that the compiler vectorises the loops that call them. There is no
// -ffast-math, and a multiplication and an addition fuse only where `fma` is written. NaN goes through everything.
//
// In float32 the largest error, over all numbers, is 1 unit in the last place for exp, exp2 and log, 1.1 for erf and
// 1.5 for tanh; sqrt and division are rounded exactly, and 1 / sqrt, which is both, is 1.5 off at most: what the root
// is off counts twice where it is little more than a power of two (test_cpp.py measures all of them).
#pragma once

#include "cpp_base.h"

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
[[gnu::always_inline]] inline float many_sinf(float x) { return __builtin_sinf(x); }
[[gnu::always_inline]] inline float many_cosf(float x) { return __builtin_cosf(x); }
[[gnu::always_inline]] inline double many_sin(double x) { return __builtin_sin(x); }
[[gnu::always_inline]] inline double many_cos(double x) { return __builtin_cos(x); }
#endif

namespace cleave {

// One rounding where the machine has the instruction; the library's emulation would be slow.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
[[gnu::always_inline]] inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
[[gnu::always_inline]] inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
[[gnu::always_inline]] inline float fma(float a, float b, float c) { return a * b + c; }
[[gnu::always_inline]] inline double fma(double a, double b, double c) { return a * b + c; }
#endif

// NaN wins over everything else.
template <class T>
[[gnu::always_inline]] inline T max(T a, T b) {
  const T r = a > b ? a : b;
  return a != a ? a : r;
}
template <class T>
[[gnu::always_inline]] inline T min(T a, T b) {
  const T r = a < b ? a : b;
  return a != a ? a : r;
}
#pragma omp declare reduction(top : float, double : omp_out = max(omp_out, omp_in)) initializer(omp_priv = -inf)
#pragma omp declare reduction(bottom : float, double : omp_out = min(omp_out, omp_in)) initializer(omp_priv = inf)

[[gnu::always_inline]] inline float sqrt(float x) { return __builtin_sqrtf(x); }
[[gnu::always_inline]] inline double sqrt(double x) { return __builtin_sqrt(x); }
[[gnu::always_inline]] inline float floor(float x) { return __builtin_floorf(x); }
[[gnu::always_inline]] inline double floor(double x) { return __builtin_floor(x); }
[[gnu::always_inline]] inline float ceil(float x) { return __builtin_ceilf(x); }
[[gnu::always_inline]] inline double ceil(double x) { return __builtin_ceil(x); }
[[gnu::always_inline]] inline float round(float x) { return __builtin_rintf(x); }  // half to even
[[gnu::always_inline]] inline double round(double x) { return __builtin_rint(x); }
[[gnu::always_inline]] inline float trunc(float x) { return __builtin_truncf(x); }
[[gnu::always_inline]] inline double trunc(double x) { return __builtin_trunc(x); }
[[gnu::always_inline]] inline float abs(float x) { return __builtin_fabsf(x); }
[[gnu::always_inline]] inline double abs(double x) { return __builtin_fabs(x); }
template <class T>
[[gnu::always_inline]] inline T abs(T x) { return x < 0 ? T(-x) : x; }
template <class T>
[[gnu::always_inline]] inline T sign(T x) { return T(x > 0) - T(x < 0); }  // 0 for NaN, as in PyTorch

// 2^n * e^r with |r| <= ln 2 / 2; 2^n in two factors, so that results below the normal range round once.
// `shifted` is n + 1.5 * 2^23: its last bits are n.
[[gnu::always_inline]] inline float scaled_exp(float r, float shifted) {
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
[[gnu::always_inline]] inline float exp(float x) {
  const i32 low = i32(bits<u32>(x)) < i32(0x42b20000) ? i32(bits<u32>(x)) : i32(0x42b20000);
  const float held = bits<float>(u32(low) < 0xc2d20000u ? u32(low) : 0xc2d20000u);
  const float shifted = fma(held, 1.44269504f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  const float r = fma(n, -1.42860677e-6f, fma(n, -0.693145752f, held));
  const float y = scaled_exp(r, shifted);
  return x != x ? x : y;
}
[[gnu::always_inline]] inline double exp(double x) { return __builtin_exp(x); }
[[gnu::always_inline]] inline float exp2(float x) {
  const float low = x < 129.0f ? x : 129.0f;
  const float held = low > -152.0f ? low : -152.0f;
  const float shifted = held + 12582912.0f;
  const float y = scaled_exp((held - (shifted - 12582912.0f)) * 0.693147181f, shifted);
  return x != x ? x : y;
}
[[gnu::always_inline]] inline double exp2(double x) { return __builtin_exp2(x); }

// log x = n log 2 + log(1 + f) with 1 + f between sqrt(1/2) and sqrt(2).
[[gnu::always_inline]] inline float log(float x) {
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
[[gnu::always_inline]] inline double log(double x) { return __builtin_log(x); }

[[gnu::always_inline]] inline float tanh(float x) {
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
[[gnu::always_inline]] inline double tanh(double x) { return __builtin_tanh(x); }

[[gnu::always_inline]] inline float erf(float x) {
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
[[gnu::always_inline]] inline double erf(double x) { return __builtin_erf(x); }

[[gnu::always_inline]] inline float sin(float x) { return many_sinf(x); }
[[gnu::always_inline]] inline double sin(double x) { return many_sin(x); }
[[gnu::always_inline]] inline float cos(float x) { return many_cosf(x); }
[[gnu::always_inline]] inline double cos(double x) { return many_cos(x); }
[[gnu::always_inline]] inline float pow(float a, float b) { return __builtin_powf(a, b); }
[[gnu::always_inline]] inline double pow(double a, double b) { return __builtin_pow(a, b); }

// The quotient rounded down and its remainder, which has the divisor's sign. An integer divided by zero is 0.
[[gnu::always_inline]] inline float mod(float a, float b) {
  const float m = __builtin_fmodf(a, b);
  return m != 0.0f && (m < 0.0f) != (b < 0.0f) ? m + b : m;
}
[[gnu::always_inline]] inline double mod(double a, double b) {
  const double m = __builtin_fmod(a, b);
  return m != 0.0 && (m < 0.0) != (b < 0.0) ? m + b : m;
}
template <class T>
[[gnu::always_inline]] inline T divide(T a, T b) {
  return b == 0 ? T(0) : std::is_signed_v<T> && b == T(-1) ? T(0 - a) : T(a / b);
}
template <class T>
[[gnu::always_inline]] inline T mod(T a, T b) {
  if (b == 0 || (std::is_signed_v<T> && b == T(-1))) return 0;
  const T m = a % b;
  return m != 0 && (m < 0) != (b < 0) ? T(m + b) : m;
}
template <class T>
[[gnu::always_inline]] inline T floordiv(T a, T b) {
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
[[gnu::always_inline]] inline T pow(T a, T b) {
  if (b < 0) return a == 1 ? T(1) : a == T(-1) ? T(b % 2 ? -1 : 1) : T(0);
  T r = 1;
  for (; b; b /= 2, a = T(a * a)) r = b % 2 ? T(r * a) : r;
  return r;
}

}  // namespace cleave
