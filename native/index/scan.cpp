// Scans of items by position, wherever their vectors lie: dot products, -infinity for an item that was removed.
#include "index/scan.h"

#include <algorithm>

namespace softindex {
namespace {

const Run* run_at(const View& view, int64_t position) {
  const auto after = [](int64_t sought, const Run& run) { return sought < run.begin; };
  return &*(std::upper_bound(view.runs.begin(), view.runs.end(), position, after) - 1);
}

// per_rows(rows, place): the rows of each run, the first of which is item from + place.
template <class PerRows>
void for_each_run(const View& view, int64_t from, int64_t to, const PerRows& per_rows) {
  const Run *run = run_at(view, from), *last = &view.runs.back();
  for (int64_t next = from; next < to; ++run) {
    const int64_t end = run == last ? to : std::min(to, run[1].begin);
    if (run->guard != nullptr) {
      const int64_t row = run->rows - run->first, width = (int64_t)sizeof(float);
      run->guard->check((row + (next - run->begin) * view.d) * width, (row + (end - run->begin) * view.d) * width);
    }
    per_rows(Rows{run->rows + (next - run->begin) * view.d, end - next, view.d, run->limit}, next - from);
    next = end;
  }
}

// The items from .. to, kept as integers of one type.
template <class Element, class Kernel>
void scan_residuals(const Kernels& kernels, const View& view, const Element* integers, Kernel kernel, int64_t from,
                    int64_t to, const Scan& scan) {
  const StoredResiduals& stored = view.residuals;
  const int64_t d = view.d, width = d * (int64_t)sizeof(Element);
  if (stored.guard != nullptr) stored.guard->check(from * width, to * width);
  int64_t cluster = view.cluster_of(from);
  for (int64_t next = from, end = from; next < to; next = end, ++cluster) {
    end = std::min(to, view.offsets[cluster + 1]);
    if (end == next) continue;
    const Rows centre = {stored.centres + cluster * d, 1, d, stored.centres + view.k * d};
    float centre_dots[most_at_once];
    kernels.scan_many(centre, scan.queries, scan.count, centre_dots, 1);
    const Residuals<Element> rows = {{integers + next * d, end - next, d, integers + view.extent * d},
                                     stored.scales + next,
                                     stored.bias == nullptr ? nullptr : stored.bias + next};
    kernel(rows, scan.queries, centre_dots, scan.count, scan.dots + (next - from), scan.stride);
  }
}

// Whether the items are kept as integers; then their dot products are filled in.
bool scan_if_residuals(const Kernels& kernels, const View& view, int64_t from, int64_t to, const Scan& scan) {
  const StoredResiduals& stored = view.residuals;
  if (stored.int8 != nullptr)
    scan_residuals(kernels, view, stored.int8, kernels.scan_residuals_int8, from, to, scan);
  else if (stored.int16 != nullptr)
    scan_residuals(kernels, view, stored.int16, kernels.scan_residuals_int16, from, to, scan);
  return stored.present();
}

}  // namespace

void mark_removed(const View& view, int64_t from, int64_t to, float* scores) {
  if (view.removed_count == 0) return;
  const int64_t* end = view.removed + view.removed_count;
  for (const int64_t* next = std::lower_bound(view.removed, end, from); next != end && *next < to; ++next)
    scores[*next - from] = gone;
}

void scan_items(const Kernels& kernels, const View& view, int64_t from, int64_t to, const float* query, float* dots) {
  if (!scan_if_residuals(kernels, view, from, to, {&query, 1, dots, 0}))
    for_each_run(view, from, to, [&](const Rows& rows, int64_t place) { kernels.scan(rows, query, dots + place); });
  mark_removed(view, from, to, dots);
}

void scan_items_together(const Kernels& kernels, const View& view, int64_t from, int64_t to, const Scan& scan) {
  if (!scan_if_residuals(kernels, view, from, to, scan))
    for_each_run(view, from, to, [&](const Rows& rows, int64_t place) {
      kernels.scan_many(rows, scan.queries, scan.count, scan.dots + place, scan.stride);
    });
  for (int64_t g = 0; g < scan.count; ++g) mark_removed(view, from, to, scan.dots + g * scan.stride);
}

StoredItem stored_at(const View& view, int64_t position) {
  const StoredResiduals& stored = view.residuals;
  if (stored.int8 != nullptr) return {stored.int8 + position * view.d, view.d};
  if (stored.int16 != nullptr) return {stored.int16 + position * view.d, view.d * (int64_t)sizeof(int16_t)};
  const Run* run = run_at(view, position);
  return {run->rows + (position - run->begin) * view.d, view.d * (int64_t)sizeof(float)};
}

}  // namespace softindex
