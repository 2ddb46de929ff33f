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
// An item in the direction of the query lies in the cluster nearest to its place unless means moved after the
// assignment: a few clusters, of squared distance nearly as small, hold all that we met. Its length may be that of any
// item: lengths are tried from the longest down, each this many times the next. A score this close to the largest that
// an item of this length can have is that of a copy.
constexpr int nearest_clusters = 8, copy_lengths = 8;
constexpr double nearly = 1.15, length_step = 1.25, copied = 0.999;
// Items of this share of the mass, in units of the tolerance, are searched for until the chance that there is one more
// is this small, in the same units. A cluster that is searched is scanned for an item of this part of that share. A
// chance of this size in the whole index counts as none.
constexpr double relevant = 1.0, allowed_chance = 2.0 / 3, searched_part = 0.125, nil = 1e-3;
// Of the mass that heavy tails lead to expect and that no sample met, this part is stated: most of an expectation comes
// from a few queries. Where the variance of the logits is below the second number, tails hold nothing worth stating.
constexpr double expected_part = 0.25, tame = 0.125;
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
// For a slate, the law must hold once this many of the likeliest items are drawn.
constexpr int64_t set_aside = 16;
// E|X| of a standard normal: turns a standard deviation into a mean deviation.
constexpr double mean_deviation = 0.7979;
// Where logits vary this much, the largest of them decide, and the variance says little.
constexpr double largest_variance = 30.0, largest_misfit = 25.0;

}  // namespace probing
}  // namespace softindex
