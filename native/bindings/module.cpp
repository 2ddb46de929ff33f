// The extension module: one bind function per product.
#include <nanobind/nanobind.h>

namespace softindex {

void bind_kernels(nanobind::module_& m);
void bind_guard(nanobind::module_& m);
void bind_ids(nanobind::module_& m);
void bind_index(nanobind::module_& m);
void bind_adaptive(nanobind::module_& m);
void bind_mixture(nanobind::module_& m);

}  // namespace softindex

NB_MODULE(_native, m) {
  m.doc() = "The compiled core; kernels/reference.py defines what each function computes.";
  softindex::bind_kernels(m);
  softindex::bind_guard(m);
  softindex::bind_ids(m);
  softindex::bind_index(m);
  softindex::bind_adaptive(m);
  softindex::bind_mixture(m);
}
