// Probing: the clusters that matter are scanned before a draw, a few others are sampled, and the error is stated.
#pragma once

#include <map>
#include <string>

#include "index/query.h"

namespace softindex {

// Turns the estimated log masses of the query into those of the law that is drawn from: probed clusters have their
// exact mass, the others their estimates times one factor. Sets the query's error and scored. The result depends on
// nothing but the index, the query's numbers and the request.
void probe(Query& query);

// The constants of probing, by name, for the test that compares them with the reference.
std::map<std::string, double> probing_constants();

}  // namespace softindex
