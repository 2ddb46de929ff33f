// The numbers that were chosen for probing. kernels/reference_probing.py has the same, and a test compares them.
#pragma once

#include <cstdint>

namespace softindex {
namespace probing {

constexpr int64_t tail_samples = 8;
constexpr int64_t shortest_stretch = 64;
// A stretch is as long as its cluster's weight requires, up to a relative variance of one over this: beyond that the
// spread among eight clusters hides the noise of each.
constexpr double most_precise = 25.0;
// A copy of the query lies in the nearest cluster unless means moved after the assignment: a few clusters, of squared
// distance nearly as small, hold all the copies we met. A score this close to |q|^2 is a copy; once one is found, the
// search goes on only while another like it would still have this share of the mass.
constexpr int nearest_clusters = 8;
constexpr double nearly = 1.15, copied = 0.999, heavy = 0.25;
// A cluster with more than this share of the mass is always scanned.
constexpr double large_share = 1.0 / 32;
// Doubling from here: fewer would sample the tail once more for every query, more would be wasted on the easy ones.
constexpr int64_t first_probes = 4;
// A sampled cluster this many times above the mean ratio makes a good part of rho alone: it is scanned, not averaged.
constexpr double surprising = 3.0;
// What adaptive probing may scan before it gives up and says so: items of this many numbers, or one item in this many.
constexpr int64_t budget_numbers = 1 << 20, budget_part = 20;
// If the error stays above this whatever the budget may scan, probing stops.
constexpr double no_hope = 0.03;
// Standard deviations beyond which a normal number is not expected among millions.
constexpr double farthest = 5.5;
// E|X| of a standard normal: turns a standard deviation into a mean deviation.
constexpr double mean_deviation = 0.7979;
// Where logits vary this much, the largest of them decide, and the variance says little.
constexpr double largest_variance = 30.0, largest_misfit = 25.0;

}  // namespace probing
}  // namespace softindex
