// Probes: the clusters that matter are scanned before a draw, a few others are sampled, and the error is stated.
#pragma once

#include <map>
#include <string>

#include "index/workspace.h"

namespace softindex {

// Turns the estimated log masses (k) of one query, relative to pivot / temperature, into the masses of the law that is
// drawn from: those of probed clusters are exact, those of the others are the estimates times one factor. Everything
// is a function of the index, the query and the law. `place` is the query's place among the staged ones.
Probed probe(const Kernels& kernels, const View& view, const Law& law, int64_t place, double* log_masses,
             Workspace& workspace);

// The numbers that were chosen, by name: the readable twin has the same, and a test compares them.
std::map<std::string, double> probing_constants();

}  // namespace softindex
