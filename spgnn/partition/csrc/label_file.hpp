// METIS's partition format: one label a line.
#pragma once

#include <charconv>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace spgnn {

// The beginning of a field for one line of a message: what is no printable ASCII as \xHH.
inline std::string quoted(std::string_view field) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown = "'";
  for (const char c : field.substr(0, 40)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += c;
    } else {
      shown += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
  }
  return shown + "'";
}

// Fills `labels`; throws std::invalid_argument "line N: what is wrong" (line 1 is the first).
inline void parse_labels(std::string_view text, std::int64_t lowest, std::int64_t parts,
                         std::span<std::int32_t> labels) {
  auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  auto wrong = [](std::size_t line, const std::string& what) {
    throw std::invalid_argument("line " + std::to_string(line) + ": " + what);
  };
  while (!text.empty() && (is_space(text.back()) || text.back() == '\n')) text.remove_suffix(1);
  std::size_t count = 0;
  while (!text.empty()) {
    std::size_t length = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, length);
    text.remove_prefix(std::min(length + 1, text.size()));
    while (!line.empty() && is_space(line.back())) line.remove_suffix(1);
    while (!line.empty() && is_space(line.front())) line.remove_prefix(1);
    if (count == labels.size()) {
      wrong(count + 1,
            "one label too many; the graph has " + std::to_string(labels.size()) + " vertices");
    }
    std::int64_t label = 0;
    auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), label);
    if (error != std::errc() || end != line.data() + line.size()) {
      wrong(count + 1, quoted(line) + " is not a label (an integer)");
    }
    if (label < lowest || label >= parts) {
      wrong(count + 1, "label " + std::to_string(label) + " is outside [" + std::to_string(lowest) +
                           ", " + std::to_string(parts) + ")");
    }
    labels[count++] = static_cast<std::int32_t>(label);
  }
  if (count < labels.size()) {
    wrong(count + 1, "the file ends after " + std::to_string(count) + " labels; the graph has " +
                         std::to_string(labels.size()) + " vertices");
  }
}

inline std::string format_labels(std::span<const std::int32_t> labels) {
  std::string text;
  text.reserve(labels.size() * 4);
  char digits[12];
  for (std::int32_t label : labels) {
    char* end = std::to_chars(digits, digits + sizeof digits, label).ptr;
    *end++ = '\n';
    text.append(digits, end);
  }
  return text;
}

}  // namespace spgnn
