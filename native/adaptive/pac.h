// Answers queries with the "pac" guarantee: estimates where they win, a scan of everything where they do not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "adaptive/bandit.h"
#include "adaptive/coordinates.h"
#include "adaptive/estimates.h"
#include "adaptive/given_rows.h"
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
  bool estimates;  // whether to try them before a scan
  PacExclusions exclusions;
};

enum class Outcome : int64_t { refused, damaged, scanned, estimated };

// What one answer took.
struct PacCost {
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
  explicit Pac(const PacLayer& layer) : layer_(layer) {}

  void answer(const Kernels& kernels, const PacRequest& request, const PacAnswers& answers);
  // Draws `count` columns, and returns how many there were; -1 for numbers that are none.
  int64_t look(const Kernels& kernels, const float* query, uint64_t seed, int64_t count, const PacLook& seen);

 private:
  struct Workspace {
    Coordinates coordinates;
    Estimates estimates;
    Bandit bandit;
    RowReader reader;
    std::vector<int64_t> candidates, which;
    std::vector<double> values;
    AlignedVector<double> dots;  // (stride), then logits
    std::vector<double> radii;   // (n) how far these may be off; 0 for rows that were scored in double
    std::vector<double> scratch;
    int64_t scored = 0;       // such rows
    bool by_columns = false;  // whether these were added up by columns

    explicit Workspace(const PacLayer& layer)
        : coordinates(layer), estimates(layer, coordinates), bandit(layer), reader(layer), dots(layer.stride),
          radii(layer.n) {}
  };

  bool start(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work) const;
  void answer_one(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                  const PacAnswers& answers) const;
  void list_candidates(const PacRequest& request, int64_t q, Workspace& work) const;
  PacCost scan(const Kernels& kernels, int64_t threads, Workspace& work) const;
  void write(const PacRequest& request, int64_t q, const std::vector<int64_t>& rows, const Workspace& work, LogZ log_z,
             double around, const PacAnswers& answers) const;
  bool bound(const PacRequest& request, Workspace& work) const;
  void score(const Kernels& kernels, const PacRequest& request, int64_t row, Workspace& work) const;
  LogZ sum_up(const Kernels& kernels, const PacRequest& request, Workspace& work) const;
  Outcome settle(const Kernels& kernels, const PacRequest& request, int64_t q, Workspace& work,
                 const PacAnswers& answers) const;
  double rounding(const PacRequest& request, const Workspace& work, int64_t row) const;

  const PacLayer layer_;
  Pool<Workspace> pool_;
};

}  // namespace softindex
