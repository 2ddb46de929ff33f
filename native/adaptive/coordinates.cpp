// Columns of one query, drawn by importance and without replacement.
#include "adaptive/coordinates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/interrupt.h"

namespace softindex {
namespace {

constexpr int64_t fan = 16;
// Tiles weighed at a time: their columns are still in the cache when they are read again.
constexpr int64_t tiles_at_once = 256;
// Bytes of a column that are fetched as soon as it is drawn.
constexpr int64_t fetched_bytes = 512;

double fold(const double* values) {
  double sums[lanes];
  std::copy(values, values + lanes, sums);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

// Four running sums: one would wait for every addition.
double sum_up(const double* values, int64_t count) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int l = 0; l < 4; ++l) sums[l] += values[i + l];
  for (int l = 0; i + l < count; ++l) sums[l] += values[i + l];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// The entry that holds the place `rest` of their sum, which becomes the place in it. Rounding may leave no such entry:
// then it is the last one of any weight.
int64_t descend(const double* values, int64_t count, double& rest) {
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (rest < values[i]) return i;
    rest -= values[i];
    if (values[i] > 0) last = i;
  }
  rest = values[last];
  return last;
}

}  // namespace

Coordinates::Coordinates(const PacLayer& layer) : layer_(layer), query_(padded(layer.d), 0.0f) {
  int64_t nodes = padded(layer.d) / lanes;
  drawn_.assign(nodes, 0);
  removed_.assign(nodes, 0);
  for (;; nodes = (nodes + fan - 1) / fan) {
    tree_.emplace_back(nodes, 0.0);
    if (nodes <= fan) break;
  }
}

bool Coordinates::start(const Kernels& kernels, const float* query, double limit, uint64_t seed) {
  clear();
  sparse_ = false;
  ColumnMoments moments = {};
  const int64_t tiles = (int64_t)drawn_.size();
  for (int64_t t = 0; t < tiles; t += tiles_at_once) {
    check_interrupt_every(1 << 20, t * tiles_at_once);
    const int64_t begin = t * lanes, end = std::min(layer_.d, begin + tiles_at_once * lanes);
    // Copied first: another thread may change the caller's numbers at any time.
    std::memcpy(query_.data() + begin, query + begin, (end - begin) * sizeof(float));
    kernels.weigh_columns(query_.data() + begin, layer_.scales + begin, std::min(tiles_at_once, tiles - t),
                          tree_[0].data() + t, moments);
  }
  return finish(moments, limit, seed);
}

bool Coordinates::start(const Kernels& kernels, const SparseQuery& query, double limit, uint64_t seed) {
  clear();
  if (!sparse_) {
    std::fill(query_.begin(), query_.end(), 0.0f);
    for (std::vector<double>& level : tree_) std::fill(level.begin(), level.end(), 0.0);
    sparse_ = true;
  }
  for (int64_t i = 0; i < query.count; ++i) {
    const int64_t tile = query.indices[i] / lanes;
    query_[query.indices[i]] = query.values[i];
    if (touched_.empty() || touched_.back() != tile) touched_.push_back(tile);
  }
  ColumnMoments moments = {};
  for (const int64_t t : touched_)
    kernels.weigh_columns(query_.data() + t * lanes, layer_.scales + t * lanes, 1, tree_[0].data() + t, moments);
  return finish(moments, limit, seed);
}

bool Coordinates::finish(const ColumnMoments& moments, double limit, uint64_t seed) {
  const double squares = fold(moments.squares);
  if (!(squares <= limit)) return false;
  norm_ = std::sqrt(squares);
  squared_weights_ = fold(moments.squared_weights);
  used_ = moments.used;
  for (size_t level = 1; level < tree_.size(); ++level) sum_tree(level);
  total_ = root_ = sum_up(tree_.back().data(), (int64_t)tree_.back().size());
  // The sums name the query: hashing all of its numbers would take longer than adding them up.
  const std::vector<double>& named = tree_[tree_.size() > 1 ? tree_.size() - 2 : 0];
  Hash hash((int64_t)named.size());
  const auto add = [&](double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    hash.add(bits);
  };
  for (const double value : named) add(value);
  add(squares);
  stream_ = {seed, hash.value()};
  return true;
}

void Coordinates::sum_tree(size_t level) {
  if (!sparse_) {
    for (int64_t node = 0; node < (int64_t)tree_[level].size(); ++node) tree_[level][node] = sum_children(level, node);
    return;
  }
  int64_t span = 1, before = -1;
  for (size_t l = 0; l < level; ++l) span *= fan;
  for (const int64_t tile : touched_) {
    if (tile / span != before) tree_[level][tile / span] = sum_children(level, tile / span);
    before = tile / span;
  }
}

double Coordinates::sum_children(size_t level, int64_t node) const {
  const std::vector<double>& below = tree_[level - 1];
  return sum_up(below.data() + node * fan, std::min(fan, (int64_t)below.size() - node * fan));
}

// Forgets the query before; a sparse one leaves only zeros behind.
void Coordinates::clear() {
  for (const int64_t column : which_) drawn_[column / lanes] = removed_[column / lanes] = 0;
  for (const int64_t tile : touched_) {
    std::fill_n(query_.begin() + tile * lanes, lanes, 0.0f);
    int64_t node = tile;
    for (std::vector<double>& level : tree_) {
      level[node] = 0;
      node /= fan;
    }
  }
  touched_.clear();
  which_.clear();
  values_.clear();
  scales_.clear();
  weights_.clear();
  sums_.assign(1, 0.0);
  squares_.assign(1, 0.0);
  taken_ = rejected_ = 0;
  settled_ = 0;
  draws_ = 0;
}

double Coordinates::weight(int64_t column) const {
  return std::fabs((double)query_[column] * (double)layer_.scales[column]);
}

void Coordinates::draw(int64_t count) {
  count = std::min(count, used_);
  while (drawn() < count) {
    check_interrupt_every(1 << 12, (int64_t)draws_);
    const Uniforms two = stream_(draws_ / 2);
    const int64_t column = pick(draws_ % 2 == 0 ? two.first : two.second);
    ++draws_;
    if ((drawn_[column / lanes] >> (column % lanes) & 1) == 0) add(column);
    if (2 * rejected_ >= root_) remove_drawn();
  }
}

int64_t Coordinates::pick(double uniform) const {
  double rest = uniform * root_;
  int64_t node = 0;
  for (size_t level = tree_.size(); level-- > 0;) {
    const std::vector<double>& sums = tree_[level];
    const int64_t begin = node * fan, count = std::min(fan, (int64_t)sums.size() - begin);
    node = begin + descend(sums.data() + begin, count, rest);
  }
  double weights[lanes];
  for (int l = 0; l < lanes; ++l) weights[l] = (removed_[node] >> l & 1) ? 0.0 : weight(node * lanes + l);
  return node * lanes + descend(weights, lanes, rest);
}

void Coordinates::add(int64_t column) {
  const char* const numbers = (const char*)(layer_.columns + column * layer_.stride);
  const int64_t bytes = std::min<int64_t>(layer_.stride * sizeof(float), fetched_bytes);
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(numbers + byte, 0, 3);
  drawn_[column / lanes] |= (uint16_t)(1 << column % lanes);
  const double share = weight(column) / total_, left = std::max(1.0 - taken_, share), inverse = 1.0 / (left * left);
  taken_ += share;
  rejected_ += weight(column);
  which_.push_back(column);
  values_.push_back((double)query_[column]);
  scales_.push_back(left / share);
  weights_.push_back(inverse);
  sums_.push_back(sums_.back() + inverse);
  squares_.push_back(squares_.back() + inverse * inverse);
}

// Takes the columns that were drawn out of the tree.
void Coordinates::remove_drawn() {
  for (; settled_ < drawn(); ++settled_) {
    const int64_t column = which_[settled_];
    int64_t node = column / lanes;
    removed_[node] |= (uint16_t)(1 << column % lanes);
    double weights[lanes];
    for (int l = 0; l < lanes; ++l) weights[l] = (removed_[node] >> l & 1) ? 0.0 : weight(node * lanes + l);
    tree_[0][node] = fold(weights);
    for (size_t level = 1; level < tree_.size(); ++level) {
      node /= fan;
      tree_[level][node] = sum_children(level, node);
    }
  }
  root_ = sum_up(tree_.back().data(), (int64_t)tree_.back().size());
  rejected_ = 0;
}

Pulls Coordinates::pulls(int64_t begin, int64_t end) const {
  return {layer_.columns,          layer_.stride, which_.data() + begin, values_.data() + begin, scales_.data() + begin,
          weights_.data() + begin, end - begin};
}

double Coordinates::heavy_product(int64_t row) const {
  const int64_t* const columns = layer_.heavy_columns + row * layer_.kept;
  const float* const heavy = layer_.heavy + row * layer_.kept;
  double sum = 0;
  for (int64_t h = 0; h < layer_.kept; ++h) sum += (double)query_[columns[h]] * (double)heavy[h];
  return sum;
}

void Coordinates::list_used(std::vector<int64_t>& which, std::vector<double>& values) const {
  which.clear();
  values.clear();
  const auto list = [&](int64_t tile) {
    for (int64_t column = tile * lanes; column < (tile + 1) * lanes; ++column) {
      if (!(weight(column) > 0)) continue;
      which.push_back(column);
      values.push_back((double)query_[column]);
    }
  };
  if (sparse_)
    for (const int64_t tile : touched_) list(tile);
  else
    for (int64_t tile = 0; tile < (int64_t)drawn_.size(); ++tile) list(tile);
}

}  // namespace softindex
