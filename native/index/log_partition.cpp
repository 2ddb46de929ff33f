// log Z between bounds: proven, or with a given probability.
#include "index/log_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/masses.h"

namespace softindex {
namespace {

// An estimate with confidence scans this many items, or one in this many of all, before it draws; then twice as many.
constexpr int64_t budget_items = 8192, budget_part = 20;
// A proof that may be given up scans one in this many items before it predicts what it takes.
constexpr int64_t first_part = 50;
// Codes serve where their error is at most this part of the width: clusters that are all coded are then close enough.
constexpr double coded_part = 0.45;
// An item costs this many times as much to scan as to read from its code.
constexpr int64_t coded_items = 4;

// The clusters that hold anything, the largest bound first.
std::vector<int64_t>& by_upper_bound(const Query& query, const Certificate& certificate) {
  std::vector<int64_t>& clusters = query.workspace.clusters;
  clusters.clear();
  for (int64_t c = 0; c < query.view.k; ++c)
    if (!query.view.empty(c)) clusters.push_back(c);
  std::sort(clusters.begin(), clusters.end(), [&](int64_t a, int64_t b) {
    return certificate.upper(a) != certificate.upper(b) ? certificate.upper(a) > certificate.upper(b) : a < b;
  });
  return clusters;
}

// Items of the clusters, from this one on, that would have to be scanned for bounds `width` apart, if log Z is about
// what the bounds suggest: the upper bounds of the clusters behind them add up to what the width allows. Four items
// that are read from their codes count as one.
int64_t items_needed(double width, const Certificate& certificate, const std::vector<int64_t>& clusters, size_t done,
                     const View& view) {
  const Bracket now = certificate.bracket();
  const double allowed = std::expm1(width);
  double left = 0;
  size_t last = clusters.size();
  for (; last > done; --last) {
    left += std::exp(certificate.upper(clusters[last - 1]) - now.value);
    if (left > allowed) break;
  }
  int64_t items = 0;
  for (size_t i = done; i < last; ++i)
    items += view.size(clusters[i]) / (certificate.codes_serve(clusters[i], coded_part * width) ? coded_items : 1);
  return items;
}

// Scans in that order, from the cluster `done` on, while the bounds are farther apart than the width and the budget
// lasts. Returns the number of clusters scanned.
size_t scan_until(double width, Certificate& certificate, const std::vector<int64_t>& clusters, int64_t budget,
                  size_t done = 0) {
  // Adding up all bounds costs about as much as scanning a cluster: do it after 1, 2, 4, ... of them.
  size_t look = done;
  for (; done < clusters.size() && certificate.scored() < budget; ++done) {
    if (done == look) {
      const Bracket now = certificate.bracket();
      if (now.high - now.low <= width) return done;
      look += std::max<size_t>(1, std::min<size_t>(look, 32));
    }
    const int64_t cluster = clusters[done];
    if (certificate.codes_serve(cluster, coded_part * width)) certificate.code(cluster);
    // Rounding may leave codes less precise than they promise; if no cluster is wider than `width`, no sum is.
    if (certificate.state(cluster) == Certificate::State::bounded || certificate.width(cluster) > width)
      certificate.scan(cluster);
  }
  return done;
}

// A running interval for the mean of numbers in [0, 1] that holds at all times together with probability 1 - delta:
// the predictable plug-in empirical Bernstein bound of Waudby-Smith and Ramdas (2024).
class MeanInterval {
 public:
  explicit MeanInterval(double delta) : budget_(std::log(2.0 / delta)) {}

  void add(double x) {
    const double i = ++count_;
    const double bet = std::min(0.8, std::sqrt(2 * budget_ / (variance_ * i * std::log(1 + i))));
    const double away = x - mean_;
    bets_ += bet;
    weighted_ += bet * x;
    cost_ += away * away * (-std::log1p(-bet) - bet);
    sum_ += x;
    mean_ = (0.5 + sum_) / (i + 1);
    squares_ += (x - mean_) * (x - mean_);
    variance_ = (0.25 + squares_) / (i + 1);
  }

  double centre() const { return weighted_ / bets_; }
  double radius() const { return (budget_ + cost_) / bets_; }

 private:
  double budget_, count_ = 0, mean_ = 0.5, variance_ = 0.25, sum_ = 0, squares_ = 0;
  double bets_ = 0, weighted_ = 0, cost_ = 0;
};

// The part of Z in the clusters that were not scanned, each of which lies between two bounds: clusters are drawn in
// proportion to the distance of their bounds, and the place of a cluster's mass between them is a number in [0, 1].
class BoundedTail {
 public:
  BoundedTail(Certificate& certificate, const int64_t* begin, const int64_t* end)
      : certificate_(certificate), clusters_(begin, end), peak_(minus_infinity) {
    for (int64_t cluster : clusters_) peak_ = std::max(peak_, certificate.upper(cluster));
    for (int64_t cluster : clusters_) {
      low_ += std::exp(certificate.lower(cluster) - peak_);
      running_.push_back(gap_ +=
                         std::exp(certificate.upper(cluster) - peak_) - std::exp(certificate.lower(cluster) - peak_));
      lower_.push_back(certificate.lower(cluster));
      upper_.push_back(certificate.upper(cluster));
    }
  }

  double draw(double uniform) {
    const auto place = std::upper_bound(running_.begin(), running_.end(), uniform * gap_);
    const size_t i = std::min<size_t>(place - running_.begin(), clusters_.size() - 1);
    const int64_t cluster = clusters_[i];
    const double mass = certificate_.state(cluster) == Certificate::State::scanned ? certificate_.upper(cluster)
                                                                                   : certificate_.scan(cluster);
    const double width = std::exp(upper_[i] - peak_) - std::exp(lower_[i] - peak_);
    return width > 0 ? std::min(1.0, std::max(0.0, (std::exp(mass - peak_) - std::exp(lower_[i] - peak_)) / width)) : 0;
  }

  // log of the tail's sum if it lies at this place between its bounds.
  double log_at(double place) const { return peak_ + std::log(low_ + gap_ * std::min(1.0, std::max(0.0, place))); }
  bool is_certain() const { return !(gap_ > 0); }

 private:
  Certificate& certificate_;
  std::vector<int64_t> clusters_;
  double peak_, low_ = 0, gap_ = 0;
  std::vector<double> running_, lower_, upper_;
};

// Sum of the clusters that were scanned, between bounds.
struct Known {
  double low = minus_infinity, high = minus_infinity;
};

Known sum_scanned(const Certificate& certificate, const std::vector<int64_t>& clusters, size_t done) {
  Known known;
  for (size_t i = 0; i < done; ++i) {
    known.low = log_add(known.low, certificate.lower(clusters[i]) - certificate.error(clusters[i]));
    known.high = log_add(known.high, certificate.upper(clusters[i]) + certificate.error(clusters[i]));
  }
  return known;
}

}  // namespace

Bracket prove_log_partition(Query& query) {
  Certificate certificate(query);
  const std::vector<int64_t>& clusters = by_upper_bound(query, certificate);
  const double width = query.request.width;
  const int64_t n = query.view.n;
  const int64_t most = query.request.most;
  // The largest clusters come first: after a few of them it shows how many more it takes.
  const bool limited = most < n;
  const size_t done = scan_until(width, certificate, clusters, limited ? n / first_part : most);
  if (limited && items_needed(width, certificate, clusters, done, query.view) <= most)
    scan_until(width, certificate, clusters, query.view.codes == nullptr ? most : n, done);
  return certificate.absolute(certificate.bracket());
}

Bracket estimate_log_partition(Query& query) {
  Certificate certificate(query);
  const double width = query.request.width;
  const int64_t budget = std::max(budget_items, query.view.n / budget_part);
  const std::vector<int64_t> clusters = by_upper_bound(query, certificate);
  const size_t done = scan_until(width, certificate, clusters, budget);
  Bracket proven = certificate.bracket();
  if (proven.high - proven.low <= width || done == clusters.size()) return certificate.absolute(proven);
  const Known known = sum_scanned(certificate, clusters, done);
  BoundedTail tail(certificate, clusters.data() + done, clusters.data() + clusters.size());
  MeanInterval mean(1.0 - query.request.confidence);
  // Every draw scans a cluster; small clusters must not make this endless.
  const int64_t most = certificate.scored() + 2 * budget, draws = std::max<int64_t>(64, query.view.k);
  double low = proven.low, high = proven.high, value = proven.value;
  const double rounded = certificate.largest_error();
  for (int64_t j = 0; j < draws && certificate.scored() < most && !tail.is_certain(); ++j) {
    mean.add(tail.draw(query.stream((uint64_t)j).first));
    low = std::max(low, log_add(known.low, tail.log_at(mean.centre() - mean.radius())) - rounded);
    high = std::min(high, log_add(known.high, tail.log_at(mean.centre() + mean.radius())) + rounded);
    value = log_add((known.low + known.high) / 2, tail.log_at(mean.centre()));
    if (high - low <= width) break;
  }
  // The clusters drawn are scanned now, which also narrows the proven bounds.
  proven = certificate.bracket();
  if (proven.low >= low && proven.high <= high) return certificate.absolute(proven);
  low = std::max(low, proven.low);
  high = std::max(low, std::min(high, proven.high));
  return certificate.absolute({std::min(std::max(value, low), high), low, high, certificate.scored()});
}

}  // namespace softindex
