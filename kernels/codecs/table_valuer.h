// Codes of up to 4 bits to values by a table of sixteen floats.
#pragma once

#include <cstdint>

#include "kernels/codecs/planes_vector.h"
#include "kernels/lanes/block.h"

namespace cgx::kernels {
namespace {

template <class V, uint32_t bits>
class TableValuer {
 public:
  static_assert(bits <= 4);
  // Entry i is the value of code i mod 2^bits: so the neighbours' bits above a code do no harm.
  explicit CGX_INLINE TableValuer(typename V::Floats values) : table_(V::table(values)) {}

  CGX_INLINE Block<V> get(const uint8_t* block) const {
    if constexpr (one_word_plane(bits)) {
      const auto words = load_words<V, bits>(block);
      return {{V::lookup(table_, words), V::lookup(table_, V::template right<bits>(words)),
               V::lookup(table_, V::template right<2 * bits>(words)),
               V::lookup(table_, V::template right<3 * bits>(words))}};
    } else {
      const Codes<V> c = load_codes<V, bits>(block);
      return {{V::lookup(table_, c.v[0]), V::lookup(table_, c.v[1]), V::lookup(table_, c.v[2]),
               V::lookup(table_, c.v[3])}};
    }
  }

 private:
  typename V::Table table_;
};

}  // namespace
}  // namespace cgx::kernels
