// Binds the checksums of blocks: computed when a file is written, compared when it is first read.
#include "bindings/guard.h"

#include <nanobind/stl/string.h>

#include <algorithm>

using namespace nanobind::literals;

namespace softindex {
namespace {

void block_sums(In<uint8_t, 1> data, int64_t block_bytes, Out<uint64_t, 1> sums) {
  const int64_t bytes = data.shape(0);
  expect(block_bytes >= 64 && block_bytes % 64 == 0 && bytes % 64 == 0, "blocks are multiples of 64 bytes");
  expect(fits(sums, (bytes + block_bytes - 1) / block_bytes), shapes_disagree);
  nb::gil_scoped_release release;
  for (int64_t begin = 0, block = 0; begin < bytes; begin += block_bytes, ++block)
    sums.data()[block] = block_sum(data.data() + begin, std::min(block_bytes, bytes - begin));
}

}  // namespace

void bind_guard(nb::module_& m) {
  m.def("block_sums", &block_sums, "data"_a, "block_bytes"_a, "sums"_a,
        "Write the checksum of every block of the bytes.");
  nb::class_<BoundGuard>(m, "Guard")
      .def(nb::init<In<uint8_t, 1>, In<uint64_t, 1>, int64_t, const std::string&>(), "data"_a, "sums"_a,
           "block_bytes"_a, "name"_a)
      .def(
          "check_all", [](const BoundGuard& bound) { bound.guard.check_all(); },
          nb::call_guard<nb::gil_scoped_release>(), "RuntimeError where a byte differs from what was written.");
}

}  // namespace softindex
