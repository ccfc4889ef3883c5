// Scratch memory of a thread, and large pages for fresh memory.
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

}  // namespace cleave
