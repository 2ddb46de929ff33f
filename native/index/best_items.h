// The k best items so far, in a heap.
#pragma once

#include <cstdint>
#include <utility>

#include "index/view.h"

namespace softindex {

// The root is the worst of them: the lowest score, and among equals the last position.
struct BestItems {
  int64_t* positions;
  double* scores;
  int64_t k;
  int64_t count = 0;

  static bool better(double score, int64_t position, double other_score, int64_t other_position) {
    return score != other_score ? score > other_score : position < other_position;
  }
  bool better_at(int64_t a, int64_t b) const { return better(scores[a], positions[a], scores[b], positions[b]); }
  void exchange(int64_t a, int64_t b) {
    std::swap(scores[a], scores[b]);
    std::swap(positions[a], positions[b]);
  }
  void sift_down(int64_t at, int64_t size) {
    for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && better_at(child, child + 1)) ++child;
      if (!better_at(at, child)) return;
      exchange(at, child);
      at = child;
    }
  }
  void sift_up(int64_t at) {
    while (at > 0 && better_at((at - 1) / 2, at)) {
      exchange(at, (at - 1) / 2);
      at = (at - 1) / 2;
    }
  }
  bool full() const { return count == k; }
  double threshold() const { return full() ? scores[0] : minus_infinity; }
  void offer(double score, int64_t position) {
    if (!full()) {
      scores[count] = score;
      positions[count] = position;
      sift_up(count++);
    } else if (better(score, position, scores[0], positions[0])) {
      scores[0] = score;
      positions[0] = position;
      sift_down(0, k);
    }
  }
  // Best first. Nothing may be offered afterwards.
  void sort() {
    for (int64_t size = count; size > 1; --size) {
      exchange(0, size - 1);
      sift_down(0, size - 1);
    }
  }
};

}  // namespace softindex
