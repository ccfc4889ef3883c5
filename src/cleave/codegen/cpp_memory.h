// Scratch memory of a thread, large pages for fresh memory, and stores that pass the caches by.
#pragma once

#include <cstdlib>

#include "cpp_base.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace cleave {

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

// Where a loop writes a line of an output of so many bytes. What no cache keeps is made in a line of the thread's
// own: a store to a line of memory that is not in a cache has it read first, which put_line does not.
#if defined(__AVX__) && !defined(__clang__)
#define CLEAVE_PASSES_CACHES
#endif
constexpr i64 kFarBytes = 16 << 20, kLongestLine = 64 << 10, kShortestLine = 512;
inline thread_local Scratch line_rooms[2];
template <int number, class T>
inline T* line_of(T* out, i64 count, i64 whole) {
#if !defined(CLEAVE_PASSES_CACHES)
  return out;
#endif
  const i64 bytes = count * i64(sizeof(T));
  if (whole * i64(sizeof(T)) < kFarBytes || bytes < kShortestLine || bytes > kLongestLine) return out;
  char* const room = line_rooms[number].room(kLongestLine);
  return room ? reinterpret_cast<T*>(room) : out;
}

// Copy a line to its place, past the caches.
template <class T>
__attribute__((noinline)) void put_line(T* out, const T* line, i64 count) {
  if (line == out) return;
  i64 n = 0;
#if defined(CLEAVE_PASSES_CACHES)
  typedef long long V __attribute__((vector_size(32)));
  typedef long long L __attribute__((vector_size(32), aligned(1)));
  constexpr i64 lanes = i64(sizeof(V) / sizeof(T));
  for (; n < count && reinterpret_cast<std::uintptr_t>(out + n) % sizeof(V); ++n) out[n] = line[n];
  for (; n + lanes <= count; n += lanes)
    __builtin_ia32_movntdq256(reinterpret_cast<V*>(out + n), *reinterpret_cast<const L*>(line + n));
  __builtin_ia32_sfence();
#endif
  for (; n < count; ++n) out[n] = line[n];
}

}  // namespace cleave
