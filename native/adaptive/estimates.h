// Estimates of one query's logits, and what they have cost compared with scoring every row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "adaptive/coordinates.h"
#include "adaptive/given_rows.h"
#include "adaptive/pac_layer.h"
#include "base/aligned.h"

namespace softindex {

// Columns that every row has in the first look.
constexpr int64_t first_columns = 48;

// What things take, in nanoseconds of one core. Only the ratios matter, and only to the choice of what to do next.
struct Prices {
  double scan;                           // a number, when all rows are scored
  double column;                         // drawing one, and reaching its numbers
  double pull;                           // a number
  double visit;                          // reaching the numbers of one, when all columns of a query are added up
  double add;                            // a number, when all columns of a query are added up
  static constexpr double query = 0.12;  // copying and weighing a column of a query
  static constexpr double list = 0.05;   // looking whether a number of a query is zero
  static constexpr double row = 30.0;    // preparing one, and comparing it after the first look

  explicit Prices(const PacLayer& layer);
};

// Rows are estimated sixteen at a time; those of a group have had the same columns. A row's variance and jump are in
// units of logits, and 0 where it was scored exactly or has had every column.
//
// `pull` and `score` do nothing, and return false, where that would cost more than a full scan justifies.
class Estimates {
 public:
  Estimates(const PacLayer& layer, Coordinates& coordinates);

  // Whether estimates may be worth what it takes to weigh all columns of a query, of which `numbers` are not zero. The
  // same for sparse queries, which are to have the same answers.
  bool are_affordable(double numbers, double share) const;
  // Starts with the query of the coordinates, which is weighed. share: of the time of a full scan that estimates may
  // take; after that all rows are scored instead. False where the first look at all rows would take longer than that.
  bool start(const Kernels& kernels, Temperature temperature, double share);

  // Whether adding up the columns that a query of so many numbers uses is cheaper than reading all rows.
  bool scans_columns(double numbers) const { return price_by_columns(numbers) < price_by_rows(); }

  bool pull(const std::vector<int64_t>& groups, int64_t upto);
  bool score(const int64_t* rows, int64_t count);

  double value(int64_t row) const { return values_[row]; }
  double variance(int64_t row) const { return variances_[row]; }
  double jump(int64_t row) const { return jumps_[row]; }
  int64_t count(int64_t row) const { return counts_[row / lanes]; }
  bool is_known(int64_t row) const { return variances_[row] == 0 && jumps_[row] == 0; }
  // How far an estimate may be off: a number of standard deviations, plus Bernstein's term for rare terms. z: as many
  // as if variances were known; by Student's t, as they are estimates.
  double width(int64_t row, double z);

  const Kernels& kernels() const { return *kernels_; }
  int64_t columns() const { return coordinates_.used(); }
  double spent() const { return spent_; }
  double room() const { return budget_ - spent_; }
  double price_of_columns(int64_t more, int64_t groups, int64_t upto) const;
  double price_of_column() const { return prices_.column; }
  double price_of_row() const { return prices_.scan * (double)layer_.d; }
  int64_t pulled() const { return pulled_; }  // multiplications
  int64_t scored() const { return scored_; }  // rows

 private:
  double price_by_rows() const { return prices_.scan * (double)layer_.n * (double)layer_.d; }
  double price_by_columns(double numbers) const;
  double price_of_scan(double numbers) const { return std::min(price_by_rows(), price_by_columns(numbers)); }
  void predict();
  void pull_same(const int64_t* groups, int64_t count, int64_t upto);
  void estimate(int64_t group);

  const PacLayer& layer_;
  Coordinates& coordinates_;
  const Prices prices_;
  const Kernels* kernels_ = nullptr;
  Temperature temperature_{};
  AlignedVector<double> state_;   // (groups, 4, 16): see pull.cpp
  std::vector<int64_t> counts_;   // (groups) columns that each has had
  std::vector<double> known_;     // (n) products of the heavy numbers
  std::vector<double> expected_;  // (n) variance of the first term, from the row's statistics
  std::vector<double> largest_;   // (n) size of a rare term
  std::vector<double> values_, variances_, jumps_;
  std::vector<uint8_t> exact_;  // (n) whether a row was scored
  std::vector<int64_t> same_;
  RowReader reader_;
  struct {
    double z;
    int64_t terms;
    double value;
  } asked_{};  // the last quantile of Student's t
  double budget_ = 0, spent_ = 0;
  int64_t pulled_ = 0, scored_ = 0;
};

// Standard deviations that an estimate from this many terms exceeds as often as a normal number exceeds z.
double student(double z, int64_t terms);

}  // namespace softindex
