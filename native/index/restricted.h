// Draws from a part of a law: without some items, without those already drawn, or from its most probable ones only.
#pragma once

#include "index/query.h"

namespace softindex {

// Whether all queries share exclusions that cost about as much to take away from an estimated law as a scan costs. The
// law is then the softmax itself, and a scan can be shared by threads and by groups of queries.
bool scans_everything(const View& view, const Request& request);
// The request with every item scored.
Request exhaustive(const Request& request);
// Probes the clusters that matter; or scans all of them where exclusions of the query's own cost as much.
void probe_or_scan(Query& query);

// What came of one query.
struct RestrictedDraws {
  int64_t left = 0;  // items that could be drawn; where these are too few for the call, nothing was
  int64_t scored = 0;
  double error = 0.0;
  double log_partition = minus_infinity;  // of the items that are not excluded

  // Of log Z: what is left out magnifies both errors by the same factor; what is scored item by item has none.
  double log_error(const Query& query) const {
    if (error == 0) return 0.0;
    return query.error > 0 ? query.log_error * error / query.error : query.log_error;
  }
};

// n draws under the request's restriction: positions and log_prob (n), each that of its step. Reads the query's log
// masses and the error of its law.
RestrictedDraws sample_restricted(Query& query, int64_t n, int64_t* positions, double* log_prob);

// log_prob (m) of one draw of the items at positions (m); -infinity for those that cannot be drawn. Without replacement
// the positions are the steps of a slate, each drawn from what the steps before it left. Where only the best items are
// drawn, the query needs its mean_dots and no log masses.
void log_prob_restricted(Query& query, const int64_t* positions, int64_t m, double* log_prob);

// Log masses (k), relative to the pivot, of the items that are not excluded; returns the error of that law.
double masses_restricted(const Query& query, double* log_masses);

// log Z of the items that are not excluded.
double log_partition_restricted(const Query& query);

}  // namespace softindex
