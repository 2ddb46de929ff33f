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

}  // namespace

void mark_removed(const View& view, int64_t from, int64_t to, float* scores) {
  if (view.removed_count == 0) return;
  const int64_t* end = view.removed + view.removed_count;
  for (const int64_t* next = std::lower_bound(view.removed, end, from); next != end && *next < to; ++next)
    scores[*next - from] = gone;
}

void scan_items(const Kernels& kernels, const View& view, int64_t from, int64_t to, const float* query, float* dots) {
  for_each_run(view, from, to, [&](const Rows& rows, int64_t place) { kernels.scan(rows, query, dots + place); });
  mark_removed(view, from, to, dots);
}

void scan_items_group(const Kernels& kernels, const View& view, int64_t from, int64_t to, const float* const* queries,
                      float* dots, int64_t stride) {
  for_each_run(view, from, to,
               [&](const Rows& rows, int64_t place) { kernels.scan_group(rows, queries, dots + place, stride); });
  for (int64_t g = 0; g < group_size; ++g) mark_removed(view, from, to, dots + g * stride);
}

const float* vector_at(const View& view, int64_t position) {
  const Run* run = run_at(view, position);
  return run->rows + (position - run->begin) * view.d;
}

}  // namespace softindex
