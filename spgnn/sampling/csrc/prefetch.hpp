// Memory that is read after some more work.
#pragma once

namespace spgnn {

// Into the second level of the cache: only some ten lines can be on their way to the first one, and
// who asks for more waits.
[[gnu::always_inline]] inline void prefetch_soon(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

}  // namespace spgnn
