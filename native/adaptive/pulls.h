// Pulls of many blocks: each adds sixteen coordinates to the estimates of some rows.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace softindex {

// What pull.cpp computes, for any number of rounds. arms (count): the rows to update.
void pull_blocks(const Kernels& kernels, const Pulls& pulls, const int64_t* arms, int64_t count,
                 const PullState& state);

}  // namespace softindex
