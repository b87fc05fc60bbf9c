// The nonzeros of some rows as kernels of attention see them: packed rows of the other side, and
// loops over the heads and features of these.
#pragma once

#include "attention_lanes.hpp"
#include "attention_types.hpp"
#include "prefetch.hpp"
#include "rows_kernel.hpp"

namespace spgnn::SPGNN_ISA {

// Hands out pieces of a kernel's memory, each from a cache line on.
class Room {
 public:
  explicit Room(char* memory) : at_((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 * 64) {}

  template <class Element>
  Element* take(std::int64_t count) {
    auto* taken = reinterpret_cast<Element*>(at_);  // NOLINT(performance-no-int-to-ptr)
    at_ += (static_cast<std::uintptr_t>(count) * sizeof(Element) + 63) / 64 * 64;
    return taken;
  }
  template <class Element>
  Element* take_zeros(std::int64_t count) {
    Element* taken = take<Element>(count);
    for (std::int64_t i = 0; i < count; ++i) taken[i] = Element{};
    return taken;
  }

 private:
  std::uintptr_t at_;
};

inline std::int64_t number_at(const Numbers& numbers, std::int64_t i) {
  return numbers.narrow ? numbers.narrow[i] : numbers.wide ? numbers.wide[i] : i;
}

// From [heads][width] to [width][padded heads] and back.
template <class T, class S>
void interleave(const T* plain, std::int64_t heads, std::int64_t padded, std::int64_t width,
                S* packed) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t c = 0; c < width; ++c) {
      if constexpr (std::is_same_v<T, S>) {
        packed[c * padded + h] = plain[h * width + c];
      } else {
        packed[c * padded + h] = widen(plain[h * width + c]);
      }
    }
  }
}
template <class S>
void separate(const S* packed, std::int64_t heads, std::int64_t padded, std::int64_t width,
              S* plain) {
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t c = 0; c < width; ++c) plain[h * width + c] = packed[c * padded + h];
  }
}

template <class T>
void pack_rows(const PackOperands<T>& a, Span rows) {
  using S = Sum<T>;
  const std::int64_t columns = packed_columns(a.padded, a.width);
  const bool filled = a.heads * a.width < columns;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    T* place = reinterpret_cast<T*>(a.packed + row * a.stride);
    for (int i = 0; i < 2 && a.matrices[i]; ++i, place += columns) {
      if (filled) std::memset(static_cast<void*>(place), 0, columns * sizeof(T));
      interleave(a.matrices[i] + row * a.strides[i], a.heads, a.padded, a.width, place);
    }
    S* numbers = reinterpret_cast<S*>(place);
    for (int i = 0; i < 3 && a.numbers[i]; ++i) {
      for (std::int64_t h = 0; h < a.padded; ++h) {
        *numbers++ = h < a.heads ? a.numbers[i][row * a.heads + h] : S{0};
      }
    }
  }
}

// What forward and backward share: the nonzeros of some rows, in a kernel's memory. kCount: heads
// of a part.
template <class T, int kCount>
struct Neighbours {
  using S = Sum<T>;
  using V = LanesOf<S>;
  using P = Part<S, kCount>;
  static constexpr int L = kLanesOf<S>;
  static constexpr int kMaxPanel = kVectorRegisters / 4;

  const AttentionOperands<T>& a;
  const std::int64_t columns = packed_columns(a.padded, a.width);
  const std::int64_t packs = (a.padded * a.width + L - 1) / L;
  // Numbers of nonzeros are [nonzero][padded heads]; patterns of heads repeat after so many.
  const std::int64_t period = a.padded > L ? a.padded : L;
  Room room;
  const char** at = room.template take<const char*>(2 * kAttentionTask + kAttentionAhead);
  S* factors = room.template take<S>(kAttentionChunk * a.padded + 16);

  Neighbours(const AttentionOperands<T>& operands, char* memory) : a(operands), room(memory) {}

  void point_at(Span nonzeros) {
    const std::int64_t count = nonzeros.end - nonzeros.begin;
    if (a.indices.narrow) {
      const std::int32_t* indices = a.indices.narrow + nonzeros.begin;
      for (std::int64_t e = 0; e < count; ++e) {
        at[e] = a.others.data + std::int64_t{indices[e]} * a.others.stride;
      }
    } else {
      const std::int64_t* indices = a.indices.wide + nonzeros.begin;
      for (std::int64_t e = 0; e < count; ++e) at[e] = a.others.data + indices[e] * a.others.stride;
    }
    for (std::int64_t e = count; e < count + kAttentionAhead; ++e) at[e] = a.others.data;
  }

  static const T* matrix(const char* row) { return reinterpret_cast<const T*>(row); }

  // f(pointer into the numbers of heads of a nonzero, offset among its heads), part by part.
  template <class Function>
  [[gnu::always_inline]] void for_each_part(Function f) const {
    if constexpr (kCount < L) {
      f(std::int64_t{0});
    } else {
      for (std::int64_t h = 0; h < a.padded; h += L) f(h);
    }
  }

  // f(place, offset in the pattern of heads) for every vector of the numbers of `count` nonzeros.
  // With fewer heads than lanes the last one reaches beyond them.
  template <class Function>
  [[gnu::always_inline]] void for_each_vector(std::int64_t count, Function f) const {
    for (std::int64_t h = 0; h < period; h += L) {
      for (std::int64_t i = h; i < count * a.padded; i += period) f(i, h);
    }
  }

  // A pattern of heads, once for every lane.
  void repeat_heads(const S* plain, S* pattern, S padding = 0) const {
    for (std::int64_t i = 0; i < period; ++i) {
      const std::int64_t head = i % a.padded;
      pattern[i] = head < a.heads ? plain[head] : padding;
    }
  }

  // Weights of heads for pack k of a row.
  [[gnu::always_inline]] V weights_of(const S* w, std::int64_t k) const {
    if constexpr (kCount < L) {
      return repeated<S, kCount>(load_part<P>(w));
    } else {
      return load_vector<V>(w + (a.padded == L ? 0 : k * L % a.padded));
    }
  }

  // What dropout multiplies weights with. `own` is the row, `first` its first nonzero here.
  void make_factors(std::int64_t own, Span nonzeros) {
    const EdgeDropout& rule = a.dropout;
    const S factor = static_cast<S>(rule.factor);
    const auto own_id = static_cast<std::uint64_t>(rule.own_ids[own]);
    const auto heads = static_cast<std::uint64_t>(a.heads);
    std::uint64_t stream = mix64(rule.seed + kGolden * (own_id + 1));
    for (std::int64_t e = nonzeros.begin; e < nonzeros.end; ++e) {
      const auto other = static_cast<std::uint64_t>(rule.other_ids[number_at(a.indices, e)]);
      if (rule.by_column) stream = mix64(rule.seed + kGolden * (other + 1));
      const std::uint64_t first = (rule.by_column ? own_id : other) * heads;
      S* place = factors + (e - nonzeros.begin) * a.padded;
      for (std::uint64_t h = 0; h < heads; ++h) {
        const std::uint64_t bits = mix64(stream + kGolden * ((first + h) / 2 + 1));
        const std::uint64_t half = (first + h) % 2 ? bits >> 32 : bits & 0xffffffffu;
        place[h] = half < rule.threshold ? S{0} : factor;
      }
      for (std::int64_t h = a.heads; h < a.padded; ++h) place[h] = 1;
    }
  }

  // sums[0] += w · x, and sums[1] += u · x, over some nonzeros and `kPacks` packs from pack k on.
  template <int kPacks, bool kTwice>
  void add_panel(const char* const* rows, std::int64_t count, std::int64_t offset, std::int64_t k,
                 const S* w, const S* u, S* sum, S* other_sum) const {
    V sums[kPacks], others[kPacks];
#pragma GCC unroll 16
    for (int i = 0; i < kPacks; ++i) {
      sums[i] = load_vector<V>(sum + (k + i) * L);
      if constexpr (kTwice) others[i] = load_vector<V>(other_sum + (k + i) * L);
    }
    for (std::int64_t e = 0; e < count; ++e) {
      const T* x = matrix(rows[e]) + offset + k * L;
      V weight, other;
      if constexpr (kCount < L) {
        weight = weights_of(w + e * a.padded, k);
        if constexpr (kTwice) other = weights_of(u + e * a.padded, k);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kPacks; ++i) {
        const V features = load_wide<S>(x + i * L);
        if constexpr (kCount == L) {
          weight = weights_of(w + e * a.padded, k + i);
          if constexpr (kTwice) other = weights_of(u + e * a.padded, k + i);
        }
        sums[i] += weight * features;
        if constexpr (kTwice) others[i] += other * features;
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kPacks; ++i) {
      store_vector(sum + (k + i) * L, sums[i]);
      if constexpr (kTwice) store_vector(other_sum + (k + i) * L, others[i]);
    }
  }

  // The same over all packs; `offset` is the matrix's place in a packed row.
  template <bool kTwice>
  void add_rows(const char* const* rows, std::int64_t count, std::int64_t offset, const S* w,
                const S* u, S* sum, S* other) const {
    for (std::int64_t k = 0; k < packs;) {
      const std::int64_t left = packs - k;
      if (kMaxPanel >= 8 && left >= 8) {
        add_panel<kMaxPanel, kTwice>(rows, count, offset, k, w, u, sum, other), k += 8;
      } else if (left >= 4) {
        add_panel<4, kTwice>(rows, count, offset, k, w, u, sum, other), k += 4;
      } else if (left >= 2) {
        add_panel<2, kTwice>(rows, count, offset, k, w, u, sum, other), k += 2;
      } else {
        add_panel<1, kTwice>(rows, count, offset, k, w, u, sum, other), k += 1;
      }
    }
  }

  // The inner product of two packed rows for every head, written to `product`. f(pack) makes the
  // pack of products.
  template <class Function>
  [[gnu::always_inline]] void sum_packs(S* product, Function f) const {
    if constexpr (kCount < L) {
      V even{}, odd{};
      std::int64_t k = 0;
      for (; k + 2 <= packs; k += 2) even += f(k), odd += f(k + 1);
      if (k < packs) even += f(k);
      store_part(product, folded<S, kCount>(even + odd));
    } else {
      for (std::int64_t h = 0; h < a.padded; h += L) {
        V sum{};
        for (std::int64_t k = h / L; k < packs; k += a.padded / L) sum += f(k);
        store_vector(product + h, sum);
      }
    }
  }
};

}  // namespace spgnn::SPGNN_ISA
