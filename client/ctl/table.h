// Aligned columns and human units for people; machines take -o json. Thread rule: pure values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cgx::ctl {

class Table {
 public:
  // A title that begins with '>' makes its column flush right.
  explicit Table(const std::vector<std::string>& titles);
  void row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string text() const;  // one line per row, titles first, two spaces between columns

 private:
  std::vector<std::string> titles_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// Lines of at most `columns` characters, longer ones end in "..."; 0: as they are.
std::string cut_lines(const std::string& text, size_t columns);

std::string human_bytes(uint64_t bytes);                     // "1.5 GiB"
std::string human_time(uint64_t ns);                         // "3.2 ms", "2 h 5 min"
std::string human_count(uint64_t count);                     // "12,345"
std::string shape_text(const std::vector<uint64_t>& shape);  // "[768, 3072]"

}  // namespace cgx::ctl
