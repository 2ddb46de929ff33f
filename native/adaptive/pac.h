// Answers queries with the "pac" guarantee: estimates where they win, a scan of everything where they do not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adaptive/bandit.h"
#include "adaptive/coordinates.h"
#include "adaptive/estimates.h"
#include "adaptive/full_scan.h"
#include "adaptive/pac_layer.h"
#include "base/pool.h"

namespace softindex {

// The queries of one call: dense (b, d), or sparse with offsets (b + 1) into columns and values.
struct PacQueries {
  int64_t b;
  const float* dense;
  const int64_t *offsets, *columns;
  const float* values;
  double limit;  // the largest square of a length
};

// Rows to leave out, increasing: offsets (b + 1), or (2) for all queries, into rows; nullptr for none.
struct PacExclusions {
  const int64_t *offsets, *rows;
  bool shared;
};

struct PacRequest {
  PacQueries queries;
  Goal goal;
  Temperature temperature;
  uint64_t seed;
  int64_t threads;
  PacExclusions exclusions;
};

enum class Outcome : int64_t { refused, damaged, scanned, estimated };

// What one scan took.
struct PacCost {
  Outcome outcome;
  int64_t rows, multiplications, bytes;
};

// One row per query.
struct PacAnswers {
  int64_t* rows;     // (b, k)
  double* scores;    // (b, k) logits times the temperature
  double* log_prob;  // (b, k)
  double* log_z;     // (b, 3) value, low, high
  int64_t* costs;    // (b, 4) the outcome, rows scored, multiplications, bytes read
};

// Estimates of all rows after the first columns of a query, for tests.
struct PacLook {
  int64_t* which;                      // (count)
  double *values, *variances, *jumps;  // (n)
};

class Pac {
 public:
  explicit Pac(const PacLayer& layer);

  void answer(const Kernels& kernels, const PacRequest& request, const PacAnswers& answers);
  // Draws `count` columns, and returns how many there were; -1 for numbers that are none.
  int64_t look(const Kernels& kernels, const float* query, uint64_t seed, int64_t count, const PacLook& seen);

 private:
  struct Workspace {
    Coordinates coordinates;
    Estimates estimates;
    Bandit bandit;
    FullScan scan;
    std::vector<int64_t> candidates, which;

    explicit Workspace(const PacLayer& layer)
        : coordinates(layer), estimates(layer, coordinates), bandit(layer), scan(layer) {}
  };

  bool start(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work) const;
  bool estimate(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                const PacAnswers& answers) const;
  void answer_one(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                  const PacAnswers& answers) const;
  PacCost scan(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
               const PacAnswers& answers) const;
  static Excluded excluded(const PacRequest& request, int64_t q);
  double rounding(const PacRequest& request, const Workspace& work, double additions) const;

  const PacLayer layer_;
  double largest_bias_ = 0, largest_log_bias_ = 0;
  Pool<Workspace> pool_;
};

}  // namespace softindex
