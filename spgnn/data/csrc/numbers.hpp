// Lines of numbers, parsed strictly: every field is a whole number or a real number, or the first
// one that is not is named.
#pragma once

#include "std.hpp"

namespace spgnn {

// What a line holds: the kinds of its first fields, then kinds that repeat to its end; 'i' is an
// integer, 'd' an id (an integer as it is printed, for 007 is not 7), 'f' a real number.
struct Grammar {
  std::string_view head, cycle;
  // Besides them, only a line's end ends a field; a double quote among them may stand around one.
  std::string_view separators;
  std::string_view comments;  // lines that begin with one of these are skipped; '/' if doubled
  bool blank_rows;            // whether a line without fields is a row
};

enum class Fault { none, integer, spelling, missing, large, number, range, count };

struct Rows {
  std::vector<i64> integers, counts, lines;
  std::vector<double> reals;
  // The first fault: the line, the field's place in the text, or how many fields the line has.
  Fault fault = Fault::none;
  i64 line = 0, begin = 0, end = 0, fields = 0;
};

class LineParser {
 public:
  LineParser(std::string_view text, const Grammar& grammar, Rows& rows)
      : begin_(text.data()), end_(text.data() + text.size()), grammar_(grammar), rows_(rows) {
    for (char c : grammar.separators) separates_[static_cast<unsigned char>(c)] = true;
    quotes_ = separates_['"'];
    separates_['"'] = false;
  }

  void run(i64 first_line) {
    const char* at = begin_;
    for (i64 line = first_line; at != end_ && rows_.fault == Fault::none; ++line) {
      if (is_comment(skip(at))) {
        while (at != end_ && *at != '\n') ++at;
      } else {
        at = parse_line(at, line);
      }
      if (at != end_) ++at;
    }
  }

 private:
  // Returns where the line ends.
  const char* parse_line(const char* at, i64 line) {
    std::size_t fields = 0;
    for (;; ++fields) {
      const char* before = at;
      at = skip(at);
      if (at == end_ || *at == '\n') break;
      char kind = kind_of(fields);
      if (kind == 0) return wrong_count(at, line, fields);
      quoted_ = quotes_ && *at == '"';
      const char* number = at + quoted_;
      const char* end = kind == 'f' ? parse_real(number) : parse_integer(number, kind == 'd');
      if (at - before > (fields > 0) && lacks_field(before, at, fields)) fail(Fault::missing, at);
      if (rows_.fault != Fault::none) {
        rows_.line = line;
        rows_.begin = at - begin_;
        rows_.end = end_of_field(at) - begin_;
        return end_;
      }
      at = end + quoted_;
    }
    if (fields == 0 && !grammar_.blank_rows) return at;
    if (fields > 0 && !complete(fields)) return wrong_count(at, line, fields);
    rows_.counts.push_back(static_cast<i64>(fields));
    rows_.lines.push_back(line);
    return at;
  }

  char kind_of(std::size_t field) const {
    if (field < grammar_.head.size()) return grammar_.head[field];
    if (grammar_.cycle.empty()) return 0;
    return grammar_.cycle[(field - grammar_.head.size()) % grammar_.cycle.size()];
  }
  bool complete(std::size_t fields) const {
    if (fields < grammar_.head.size()) return false;
    std::size_t more = fields - grammar_.head.size();
    return grammar_.cycle.empty() ? more == 0 : more % grammar_.cycle.size() == 0;
  }

  const char* parse_integer(const char* at, bool is_id) {
    i64 value = 0;
    if (is_id && !is_printed(at)) return fail(Fault::spelling, at);
    auto [end, error] = std::from_chars(without_plus(at), end_, value);
    if (!closes(end) || error == std::errc::invalid_argument) return fail(Fault::integer, at);
    if (error == std::errc::result_out_of_range) return fail(Fault::large, at);
    rows_.integers.push_back(value);
    return end;
  }
  const char* parse_real(const char* at) {
    double value = 0;
    auto [end, error] = std::from_chars(without_plus(at), end_, value);
    if (!closes(end) || error == std::errc::invalid_argument) return fail(Fault::number, at);
    if (error == std::errc::result_out_of_range) return fail(Fault::range, at);
    rows_.reals.push_back(value);
    return end;
  }
  const char* fail(Fault fault, const char* at) {
    rows_.fault = fault;
    return at;
  }
  const char* wrong_count(const char* at, i64 line, std::size_t fields) {
    for (at = skip(at); at != end_ && *at != '\n'; at = skip(end_of_field(at))) ++fields;
    rows_.fault = Fault::count;
    rows_.line = line;
    rows_.fields = static_cast<i64>(fields);
    return end_;
  }

  // Whether neither a plus sign nor a zero stands before an integer.
  bool is_printed(const char* at) const {
    if (*at == '+') return false;
    const char* digit = at + (*at == '-');
    if (digit == end_ || *digit != '0') return true;
    return digit == at && (at + 1 == end_ || at[1] < '0' || at[1] > '9');
  }
  // Whether two commas follow each other, or one stands before the first field.
  static bool lacks_field(const char* from, const char* to, std::size_t fields) {
    auto stands = [](char c) { return c == ',' || c == ';'; };
    return std::count_if(from, to, stands) > (fields > 0);
  }
  // std::from_chars knows no plus sign.
  const char* without_plus(const char* at) const {
    bool plus = *at == '+' && at + 1 != end_ && at[1] != '-' && at[1] != '+';
    return plus ? at + 1 : at;
  }
  bool is_comment(const char* at) const {
    if (at == end_ || grammar_.comments.find(*at) == std::string_view::npos) return false;
    return *at != '/' || (at + 1 != end_ && at[1] == '/');
  }
  // Whether a number may end here: before the quote that ends its field, if it stands in quotes.
  bool closes(const char* at) const {
    return quoted_ ? at != end_ && *at == '"' && at_end(at + 1) : at_end(at);
  }
  bool separates(char c) const { return separates_[static_cast<unsigned char>(c)]; }
  bool at_end(const char* at) const { return at == end_ || *at == '\n' || separates(*at); }
  const char* skip(const char* at) const {
    while (at != end_ && separates(*at)) ++at;
    return at;
  }
  const char* end_of_field(const char* at) const {
    while (!at_end(at)) ++at;
    return at;
  }

  const char *begin_, *end_;
  const Grammar& grammar_;
  Rows& rows_;
  bool separates_[256] = {};
  bool quotes_ = false, quoted_ = false;
};

}  // namespace spgnn
