// log Z between bounds: proven, or with a given probability.
#pragma once

#include "index/certificate.h"

namespace softindex {

// Scans clusters until the bounds of log Z are no farther apart than the request's width, or nothing is left to scan.
Bracket prove_log_partition(Query& query);

// The same for a limited number of items; where that does not suffice, clusters are drawn, and the bounds hold with the
// request's confidence over the query's stream.
Bracket estimate_log_partition(Query& query);

}  // namespace softindex
