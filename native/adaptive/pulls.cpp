// Pulls of many blocks: each adds sixteen coordinates to the estimates of some rows.
#include "adaptive/pulls.h"

#include <algorithm>

#include "base/interrupt.h"

namespace softindex {
namespace {

// The CPU's prefetching follows only a few blocks at once.
constexpr int64_t blocks_at_once = 8;

}  // namespace

void pull_blocks(const Kernels& kernels, const Pulls& pulls, const int64_t* arms, int64_t count,
                 const PullState& state) {
  for (int64_t r = 0; r < pulls.rounds; r += blocks_at_once) {
    if (r > 0) check_interrupt();
    Pulls some = pulls;
    some.which += r;
    some.queries += r * lanes;
    some.scales += r;
    some.weights += r;
    some.rounds = std::min(blocks_at_once, pulls.rounds - r);
    kernels.pull(some, arms, count, state);
  }
}

}  // namespace softindex
