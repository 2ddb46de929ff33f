// What a caller wants of an engine, and where the results go.
#pragma once

#include <cstdint>

namespace softindex {

// A law is the probability distribution that is drawn from; what differs is how the mass of a cluster is computed.
enum class Kind {
  estimated,   // from the moments of the cluster
  certified,   // from proven bounds where these decide, else by scanning the cluster
  exhaustive,  // by scanning every cluster
  tree,        // from the choices between two children on the way down a tree
};

// The terms of an estimate: log mass = q.mean / t + log size + q' S q / (2 t^2).
struct Law {
  Kind kind = Kind::estimated;
  bool size = false;        // use the size of each cluster; otherwise all that hold items count the same
  bool dispersion = false;  // add the last term
};

// Positions of items, increasing.
struct Positions {
  const int64_t* first = nullptr;
  int64_t count = 0;
};

// Which part of the law is drawn from, and how.
struct Restriction {
  const int64_t* offsets = nullptr;    // (rows + 1): row r is positions[offsets[r]] .. positions[offsets[r + 1]]
  const int64_t* positions = nullptr;  // increasing in each row
  const int64_t* allows = nullptr;  // (rows): 1 where a row has the items that may be drawn, 0 where it has the others
  bool shared = true;               // one row for all queries, or one for each
  bool replace = true;
  double top_p = 1.0;  // below 1: only the most probable items that reach this together
  int64_t k = 0;       // above 0: the softmax of the k best items instead of the law

  // Whether the query has a list of the items that it may draw: all of them are scored, and no others.
  bool lists(int64_t query) const { return allows != nullptr && allows[row_of(query)] != 0; }
  Positions listed_of(int64_t query) const { return lists(query) ? positions_of(query) : Positions{}; }
  // Empty where it has such a list.
  Positions excluded_of(int64_t query) const { return lists(query) ? Positions{} : positions_of(query); }

 private:
  int64_t row_of(int64_t query) const { return shared ? 0 : query; }
  Positions positions_of(int64_t query) const {
    const int64_t row = row_of(query);
    return {positions + offsets[row], offsets[row + 1] - offsets[row]};
  }
};

struct Request {
  const float* queries = nullptr;  // (b, d)
  int64_t b = 0;
  Law law;
  double temperature = 1.0;              // of all queries
  const double* temperatures = nullptr;  // (b) of each query, or null
  int64_t probes = 0;                    // clusters scanned before drawing; below zero: as many as the answer needs
  double tolerance = 0.0;                // total variation at which probing stops; of the k best, see Wanted::missed
  double width = 0.0;                    // nats between the bounds of log Z at which scanning stops
  double confidence = 1.0;               // below 1: the bounds of log Z hold with this probability, over the seed
  int64_t most = INT64_MAX;              // items scored for a proof, about; where it takes more, it is given up
  double margin = 0.0;                   // see Wanted::margin
  const Restriction* restriction = nullptr;  // or null: the entire law, with replacement
  uint64_t seed = 0;
  int64_t threads = 1;

  double temperature_of(int64_t query) const { return temperatures == nullptr ? temperature : temperatures[query]; }
  Positions excluded_of(int64_t query) const {
    return restriction == nullptr ? Positions{} : restriction->excluded_of(query);
  }
  bool lists(int64_t query) const { return restriction != nullptr && restriction->lists(query); }
  // Whether probes are chosen for a slate, each item of which is drawn from what the ones before it left.
  bool draws_slates() const { return probes < 0 && restriction != nullptr && !restriction->replace; }
};

// log Z of each query: (b) each. Bounds are written where there are some, else NaN.
struct LogPartition {
  double *value, *low, *high;

  void set(int64_t query, double estimate, double at_least, double at_most) const {
    value[query] = estimate;
    low[query] = at_least;
    high[query] = at_most;
  }
  void set_about(int64_t query, double estimate, double slack) const {
    set(query, estimate, estimate - slack, estimate + slack);
  }
};

// Of n draws per query.
struct DrawResults {
  int64_t n = 0;
  int64_t* positions = nullptr;  // (b, n)
  double* log_prob = nullptr;    // (b, n)
  double* low = nullptr;         // (b, n) bounds on log_prob, certified draws only
  double* high = nullptr;        // (b, n)
  double* error = nullptr;       // (b)
  int64_t* scored = nullptr;     // (b) items
  LogPartition log_partition = {};
  // (b) items that could be drawn, restricted draws only. Where they are too few for n draws, nothing was drawn.
  int64_t* left = nullptr;
};

struct LogPartitionResults {
  LogPartition log_partition = {};
  int64_t* scored = nullptr;  // (b) items
};

// log_prob (b, m) of the items at positions (b, m). Without replacement these are steps of slates, each drawn from what
// the steps before it left; a position of -1 is an item that is not there.
struct LogProbResults {
  int64_t m = 0;
  const int64_t* positions = nullptr;
  double* log_prob = nullptr;
};

// The k best items of each query.
struct BestResults {
  int64_t k = 0;
  int64_t* positions = nullptr;  // (b, k)
  float* scores = nullptr;       // (b, k)
  bool* proven = nullptr;        // (b, k) no item that was not scored has a larger score
  double* gap = nullptr;         // (b) how far such an item may be above the last of the k at most
  double* missed = nullptr;      // (b) share of the k best that such items are expected to be
  int64_t* scored = nullptr;     // (b) items
};

// The log mass that the law gives each cluster.
struct MassResults {
  double* log_masses = nullptr;  // (b, k)
  double* error = nullptr;       // (b)
  int64_t* scored = nullptr;     // (b) items
};

}  // namespace softindex
