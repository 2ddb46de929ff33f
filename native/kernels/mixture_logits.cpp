// The logits of all pairs of a query's and an item's parts, for a tile of items, and the largest of each item.
#include "kernels/mixture_tile.h"

namespace softindex {
namespace SOFTINDEX_TARGET {

// logits (pairs, tile) of a packed query with columns (item_parts * d, tile).
void mixture_logits(const Mixture<float>& mixture, const float* query, const float* columns, float* logits) {
  all_logits(mixture, query, columns, logits);
}

// largest (tile): the largest logit of each item.
void mixture_largest(const Mixture<float>& mixture, const float* logits, float* largest) {
  const int64_t pairs = mixture.query_parts * mixture.item_parts;
  for (int i = 0; i < registers; ++i) {
    Vector top = read(logits + i * width);
    for (int64_t p = 1; p < pairs; ++p) top = greater(top, read(logits + p * tile<float> + i * width));
    write(largest + i * width, top);
  }
}

}  // namespace SOFTINDEX_TARGET
}  // namespace softindex
