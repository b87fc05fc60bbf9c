// Numbers of names: byte strings become 0, 1, 2, …, in the order in which they first occur.
#pragma once

#include "big_array.hpp"
#include "std.hpp"

namespace spgnn {

// An array that grows by moving its pages, not by a copy of them.
template <class T> class GrowingArray {
 public:
  GrowingArray() = default;
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;
  ~GrowingArray() { std::free(data_); }

  void append(const T* values, std::size_t count) {
    if (size_ + count > room_) {
      const std::size_t room = std::max(size_ + count, room_ + room_ / 2 + 64);
      auto* grown = static_cast<T*>(std::realloc(data_, room * sizeof(T)));
      if (!grown) throw std::bad_alloc();
      data_ = grown, room_ = room;
    }
    if (count) std::memcpy(data_ + size_, values, count * sizeof(T));
    size_ += count;
  }
  const T& operator[](std::size_t i) const { return data_[i]; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0, room_ = 0;
};

class NameTable {
 public:
  NameTable() : slots_(kLeastSlots) {
    const i64 zero = 0;
    ends_.append(&zero, 1);
  }

  // The number of each name, bytes [begins[i], begins[i + 1]) of `bytes`. A new one gets the next
  // number; if none may be new, −1.
  void number(std::span<const i64> begins, const char* bytes, bool all_known, i64* numbers) {
    // The slots of a few names are fetched together: each would be waited for alone.
    constexpr std::size_t kTogether = 32;
    u64 hashes[kTogether];
    const std::size_t names = begins.size() - 1;
    for (std::size_t first = 0; first < names; first += kTogether) {
      const std::size_t last = std::min(first + kTogether, names);
      for (std::size_t i = first; i < last; ++i) {
        hashes[i - first] = hash(view(bytes, begins, i));
        __builtin_prefetch(&slots_[hashes[i - first] & (slots_.size() - 1)]);
      }
      for (std::size_t i = first; i < last; ++i) {
        numbers[i] = find(view(bytes, begins, i), hashes[i - first], all_known);
      }
    }
  }

  i64 size() const { return std::ssize(ends_) - 1; }
  std::string_view operator[](std::size_t i) const {
    return {bytes_.data() + ends_[i], static_cast<std::size_t>(ends_[i + 1] - ends_[i])};
  }

  // Numbers in rising order of their names' bytes.
  std::vector<i64> order() const {
    // Most pairs differ in the eight bytes behind what all names begin with.
    std::size_t common = size() ? (*this)[0].size() : 0;
    for (std::size_t i = 1; i < static_cast<std::size_t>(size()); ++i) {
      const auto a = (*this)[0].substr(0, common), b = (*this)[i];
      const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
      common = static_cast<std::size_t>(end - a.begin());
    }
    std::vector<std::pair<u64, i64>> keys;
    keys.reserve(size());
    for (i64 i = 0; i < size(); ++i) {
      const auto rest = (*this)[i].substr(common);
      u64 key = 0;
      std::memcpy(&key, rest.data(), std::min<std::size_t>(rest.size(), 8));
      if constexpr (std::endian::native == std::endian::little) key = __builtin_bswap64(key);
      keys.emplace_back(key, i);
    }
    std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : (*this)[a.second] < (*this)[b.second];
    });
    std::vector<i64> numbers(keys.size());
    std::ranges::transform(keys, numbers.begin(), [](const auto& key) { return key.second; });
    return numbers;
  }

 private:
  // Part of a hash, and a number + 1; 0: empty.
  struct Slot {
    u32 mark, number;
  };
  static constexpr std::size_t kLeastSlots = 1 << 10;

  static std::string_view view(const char* bytes, std::span<const i64> begins, std::size_t i) {
    return {bytes + begins[i], static_cast<std::size_t>(begins[i + 1] - begins[i])};
  }

  static u64 hash(std::string_view name) {
    u64 state = 0x9e3779b97f4a7c15u ^ name.size(), word;
    const auto mix = [&] {
      state = (state ^ word) * 0xbf58476d1ce4e5b9u;
      state ^= state >> 29;
    };
    const char* at = name.data();
    std::size_t left = name.size();
    for (; left >= 8; at += 8, left -= 8) {
      std::memcpy(&word, at, 8);
      mix();
    }
    word = 0;
    std::memcpy(&word, at, left);
    mix();
    word = state >> 32;
    mix();
    return state;
  }

  i64 find(std::string_view name, u64 hashed, bool all_known) {
    const auto mark = static_cast<u32>(hashed >> 32);
    std::size_t at = hashed & (slots_.size() - 1);
    for (; slots_[at].number; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].mark == mark && (*this)[slots_[at].number - 1] == name) {
        return static_cast<i64>(slots_[at].number) - 1;
      }
    }
    if (all_known) return -1;
    const i64 number = size();
    if (number >= 0xfffffffeu) throw InputError("more than 4,294,967,294 different ids");
    bytes_.append(name.data(), name.size());
    const auto end = std::ssize(bytes_);
    ends_.append(&end, 1);
    slots_[at] = {mark, static_cast<u32>(number + 1)};
    if (3 * static_cast<std::size_t>(size()) > 2 * slots_.size()) grow();
    return number;
  }

  void grow() {
    BigArray<Slot> larger(2 * slots_.size());
    for (i64 i = 0; i < size(); ++i) {
      const u64 hashed = hash((*this)[i]);
      std::size_t at = hashed & (larger.size() - 1);
      while (larger[at].number) at = (at + 1) & (larger.size() - 1);
      larger[at] = {static_cast<u32>(hashed >> 32), static_cast<u32>(i + 1)};
    }
    slots_ = std::move(larger);
  }

  BigArray<Slot> slots_;
  GrowingArray<char> bytes_;
  GrowingArray<i64> ends_;
};

}  // namespace spgnn
