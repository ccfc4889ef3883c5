// Element types, sizes and positions, and the exact rounding of narrow floats.
#pragma once

#include <cstdint>
#include <type_traits>

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

// How many steps a loop has: known to the compiler where strides are 1. Elsewhere it would take short loops of gathers
// apart, which are no faster for it, and be busy with them for most of its time.
template <class Stride>
[[gnu::always_inline]] inline i64 steps(i64 count, Stride) {
  if constexpr (std::is_same_v<Stride, i64>) asm("" : "+r"(count));
  return count;
}

template <class To, class From>
[[gnu::always_inline]] inline To bits(From x) {
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

// N running values of a reduction put together, half with half.
template <int N, class T, class With>
[[gnu::always_inline]] inline T folded(T* values, const With& with) {
  if constexpr (N > 1) {
#pragma omp simd
    for (int n = 0; n < N / 2; ++n) values[n] = with(values[n], values[n + N / 2]);
    return folded<N / 2>(values, with);
  }
  return values[0];
}

inline bool inside(i64 position, i64 size) { return position >= 0 && position < size; }

// ------------------------------------------------------------------ narrow floats

[[gnu::always_inline]] inline float widen_bf16(u16 x) { return bits<float>(u32(x) << 16); }

[[gnu::always_inline]] inline u16 narrow_bf16(float x) {  // to nearest even; NaN stays NaN
  const u32 u = bits<u32>(x);
  const u32 r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return u16(x != x ? 0x7fc0 : r);
}

[[gnu::always_inline]] inline float round_bf16(float x) {
  const u32 u = bits<u32>(x);
  const float r = bits<float>((u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u);
  return x != x ? bits<float>(u | 0x400000) : r;
}

[[gnu::always_inline]] inline u16 cut_bf16(float x) { return u16(bits<u32>(x) >> 16); }  // of what is rounded

[[gnu::always_inline]] inline float widen_f16(u16 h) {
  const u32 magnitude = u32(h & 0x7fff) << 13;
  const float x = bits<float>(magnitude) * 0x1p112f;  // moves the exponent, subnormals too
  const float y = magnitude >= (u32(0x7c00) << 13) ? bits<float>(magnitude | 0x7f800000u) : x;
  return bits<float>(bits<u32>(y) | (u32(h & 0x8000) << 16));
}

// To the nearest value of float16, to even, as a float. Adding and taking off a number whose last place is
// float16's last place at this exponent rounds there.
[[gnu::always_inline]] inline float round_f16(float x) {
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

[[gnu::always_inline]] inline u16 narrow_f16(float x) {
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

}  // namespace cleave
