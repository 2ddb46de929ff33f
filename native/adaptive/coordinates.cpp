// Columns of one query, drawn by importance and without replacement.
#include "adaptive/coordinates.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/interrupt.h"

namespace softindex {
namespace {

constexpr int64_t fan = 16;
// Columns of sixteen tiles.
constexpr int64_t block = fan * lanes;
// Blocks weighed at a time: their columns are still in the cache when they are read again.
constexpr int64_t blocks_at_once = 16;
// Numbers of a query that are looked at first, and between two looks for an interrupt.
constexpr int64_t first_numbers = 4096, numbers_at_once = 1 << 22;
// Bytes of a column that are fetched as soon as it is drawn.
constexpr int64_t fetched_bytes = 512;

// See weigh_columns.cpp.
int64_t tile_of(int64_t column) { return column / block * fan + column % lanes; }
int place_in_tile(int64_t column) { return (int)(column / lanes % fan); }
int64_t column_at(int64_t tile, int place) { return tile / fan * block + place * lanes + tile % fan; }

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
  int64_t nodes = (layer.d + block - 1) / block * fan;
  drawn_.assign(nodes, 0);
  removed_.assign(nodes, 0);
  for (;; nodes = (nodes + fan - 1) / fan) {
    tree_.emplace_back(nodes, 0.0);
    if (nodes <= fan) break;
  }
}

double Coordinates::glance(const Kernels& kernels, const float* query) {
  clear();
  // Numbers of the query before may stay in the copy.
  sparse_ = false;
  now_ = query;
  const int64_t some = std::min(first_numbers, layer_.d);
  list(kernels, 0, some);
  return (double)seen_.numbers / (double)some * (double)layer_.d;
}

bool Coordinates::survey(const Kernels& kernels, double limit, bool listed) {
  if (listed) {
    list(kernels, listed_upto_, layer_.d);
  } else {
    for (int64_t begin = std::min(first_numbers, layer_.d); begin < layer_.d; begin += numbers_at_once) {
      check_interrupt();
      const Survey found = kernels.survey(now_ + begin, std::min(numbers_at_once, layer_.d - begin));
      seen_ = {seen_.squares + found.squares, seen_.numbers + found.numbers};
    }
  }
  measure(seen_);
  return squared_norm_ <= limit;
}

bool Coordinates::start(const Kernels& kernels, const float* query, double limit, uint64_t seed) {
  clear();
  sparse_ = false;
  now_ = query_.data();
  ColumnMoments moments = {};
  constexpr int64_t step = blocks_at_once * block;
  for (int64_t begin = 0; begin < layer_.d; begin += step) {
    check_interrupt_every(1 << 8, begin / step);
    const int64_t end = std::min(layer_.d, begin + step);
    // Copied first: another thread may change the caller's numbers at any time.
    std::memcpy(query_.data() + begin, query + begin, (end - begin) * sizeof(float));
    kernels.weigh_columns(query_.data() + begin, layer_.scales + begin, padded(end - begin) / lanes,
                          tree_[0].data() + begin / lanes, moments);
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
  now_ = query_.data();
  for (int64_t i = 0; i < query.count; ++i) {
    query_[query.indices[i]] = query.values[i];
    if (touched_.empty() || touched_.back() != query.indices[i] / block) touched_.push_back(query.indices[i] / block);
  }
  ColumnMoments moments = {};
  for (const int64_t each : touched_) {
    const int64_t begin = each * block, count = std::min(block, padded(layer_.d) - begin) / lanes;
    kernels.weigh_columns(query_.data() + begin, layer_.scales + begin, count, tree_[0].data() + each * fan, moments);
  }
  return finish(moments, limit, seed);
}

void Coordinates::measure(const Survey& found) {
  numbers_ = found.numbers;
  squared_norm_ = found.squares;
  // Rounded up: squares are added in float32, sixteen at a time, and tiny ones lose digits.
  norm_ = std::sqrt(squared_norm_ * (1 + 2e-6) + 2e-45 * (double)layer_.d);
  is_surveyed_ = true;
}

bool Coordinates::finish(const ColumnMoments& moments, double limit, uint64_t seed) {
  const double squares = fold(moments.squares);
  measure({squares, moments.numbers});
  if (!(squares <= limit)) return false;
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
  for (size_t l = 1; l < level; ++l) span *= fan;
  for (const int64_t each : touched_) {
    if (each / span != before) tree_[level][each / span] = sum_children(level, each / span);
    before = each / span;
  }
}

double Coordinates::sum_children(size_t level, int64_t node) const {
  const std::vector<double>& below = tree_[level - 1];
  return sum_up(below.data() + node * fan, std::min(fan, (int64_t)below.size() - node * fan));
}

// Forgets the query before; a sparse one leaves only zeros behind.
void Coordinates::clear() {
  for (const int64_t column : which_) drawn_[tile_of(column)] = removed_[tile_of(column)] = 0;
  for (const int64_t each : touched_) {
    const int64_t begin = each * block;
    std::fill_n(query_.begin() + begin, std::min(block, padded(layer_.d) - begin), 0.0f);
    std::fill_n(tree_[0].begin() + each * fan, fan, 0.0);
    int64_t node = each;
    for (size_t level = 1; level < tree_.size(); ++level, node /= fan) tree_[level][node] = 0;
  }
  touched_.clear();
  listed_upto_ = 0;
  seen_ = {};
  is_surveyed_ = false;
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

// The weights of the columns of a tile that are in the tree.
void Coordinates::weigh_tile(int64_t tile, double* weights) const {
  for (int place = 0; place < lanes; ++place) {
    const int64_t column = column_at(tile, place);
    const bool out = column >= layer_.d || (removed_[tile] >> place & 1);
    weights[place] = out ? 0.0 : weight(column);
  }
}

double Coordinates::weight(int64_t column) const { return (double)std::fabs(query_[column] * layer_.scales[column]); }

void Coordinates::draw(int64_t count) {
  count = std::min(count, used_);
  while (drawn() < count) {
    check_interrupt_every(1 << 12, (int64_t)draws_);
    if (draws_ % 2 == 0) two_ = stream_(draws_ / 2);
    const int64_t column = pick(draws_ % 2 == 0 ? two_.first : two_.second);
    ++draws_;
    if ((drawn_[tile_of(column)] >> place_in_tile(column) & 1) == 0) add(column);
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
  weigh_tile(node, weights);
  return column_at(node, (int)descend(weights, lanes, rest));
}

void Coordinates::add(int64_t column) {
  const char* const numbers = (const char*)(layer_.columns + column * layer_.stride);
  const int64_t bytes = std::min<int64_t>(layer_.stride * sizeof(float), fetched_bytes);
  for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(numbers + byte, 0, 3);
  drawn_[tile_of(column)] |= (uint16_t)(1 << place_in_tile(column));
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
    int64_t node = tile_of(column);
    removed_[node] |= (uint16_t)(1 << place_in_tile(column));
    double weights[lanes];
    weigh_tile(node, weights);
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
  for (int64_t h = 0; h < layer_.kept; ++h) sum += (double)now_[columns[h]] * (double)heavy[h];
  return sum;
}

const int32_t* Coordinates::list_numbers(const Kernels& kernels) {
  if (listed_upto_ == layer_.d) return listed_.data();
  listed_upto_ = 0;
  seen_ = {};
  if (sparse_)
    for (const int64_t each : touched_) list(kernels, each * block, std::min(layer_.d, (each + 1) * block));
  else
    list(kernels, 0, layer_.d);
  listed_upto_ = layer_.d;
  return listed_.data();
}

// Lists the columns begin <= column < end after those that were.
void Coordinates::list(const Kernels& kernels, int64_t begin, int64_t end) {
  if (listed_.empty()) listed_.resize(padded(layer_.d) + lanes);
  for (; begin < end; begin += numbers_at_once) {
    check_interrupt();
    const int64_t count = std::min(numbers_at_once, end - begin);
    const Survey found = kernels.list_numbers(now_ + begin, count, begin, listed_.data() + seen_.numbers);
    seen_ = {seen_.squares + found.squares, seen_.numbers + found.numbers};
  }
  listed_upto_ = end;
}

}  // namespace softindex
