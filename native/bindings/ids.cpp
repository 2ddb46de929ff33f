// Binds the tables of ids to Python: turns Python's integers and strings into plain ones, and keeps arrays alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/variant.h>

#include <variant>
#include <vector>

#include "bindings/arrays.h"
#include "ids/tables.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace softindex {

namespace {

using AnyIntegers = std::variant<In<int32_t, 1>, In<int64_t, 1>>;

StoredPositions stored_positions(const AnyIntegers& positions, int64_t n) {
  expect(std::visit([n](const auto& array) { return fits(array, n); }, positions), shapes_disagree);
  if (const auto* narrow = std::get_if<0>(&positions)) return {narrow->data(), nullptr};
  return {nullptr, std::get<1>(positions).data()};
}

HashKey hash_key(const In<uint64_t, 1>& key) {
  expect(fits(key, 2), "a key has two numbers");
  return {key.data()[0], key.data()[1]};
}

void hash_strings(In<uint8_t, 1> text, In<int64_t, 1> ends, In<uint64_t, 1> key, Out<uint64_t, 1> hashes) {
  const int64_t count = ends.shape(0), length = text.shape(0);
  const HashKey secret = hash_key(key);
  expect(fits(hashes, count), shapes_disagree);
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t end = ends.data()[i];
    if (end < begin || end > length) throw std::runtime_error("the ends of the strings are out of order");
    hashes.data()[i] = keyed_hash(secret, text.data() + begin, end - begin);
    begin = end;
  }
}

// Returns whether all of them are integers of 64 bits, and nothing that only behaves like one.
bool read_integers(const nb::typed<nb::list, nb::any>& values, Out<int64_t, 1> integers) {
  const int64_t count = (int64_t)values.size();
  expect(fits(integers, count), shapes_disagree);
  for (int64_t i = 0; i < count; ++i) {
    PyObject* value = PyList_GetItem(values.ptr(), i);
    int overflow = 0;
    if (!PyLong_CheckExact(value)) return false;
    integers.data()[i] = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
  }
  return true;
}

// Writes a code point as UTF-8, lone surrogates included; returns the end of what was written.
char* write_code_point(uint32_t point, char* to) {
  const auto last = [&](int shift) { return (char)(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    *to++ = (char)point;
  } else if (point < 0x800) {
    *to++ = (char)(0xC0 | point >> 6);
    *to++ = last(0);
  } else if (point < 0x10000) {
    *to++ = (char)(0xE0 | point >> 12);
    *to++ = last(6);
    *to++ = last(0);
  } else {
    *to++ = (char)(0xF0 | point >> 18);
    *to++ = last(12);
    *to++ = last(6);
    *to++ = last(0);
  }
  return to;
}

// Strings of Python, encoded. The bytes belong to the strings themselves where Python keeps them there.
class EncodedList {
 public:
  explicit EncodedList(const nb::list& values) {
    for (PyObject* value = nullptr; texts.size() < values.size();) {
      value = PyList_GetItem(values.ptr(), (Py_ssize_t)texts.size());
      if (!PyUnicode_Check(value)) return;
      Py_ssize_t size = 0;
      const char* bytes = PyUnicode_AsUTF8AndSize(value, &size);
      texts.push_back(bytes == nullptr ? encode(value) : Text{bytes, (int64_t)size});
    }
  }

  std::vector<Text> texts;  // as many as are strings, up to the first that is none

 private:
  // Lone surrogates have no UTF-8 in the strict sense.
  Text encode(PyObject* value) {
    PyErr_Clear();
    nb::object bytes = nb::steal(PyUnicode_AsEncodedString(value, "utf-8", "surrogatepass"));
    if (!bytes.is_valid()) throw nb::python_error();
    kept_.push_back(bytes);
    return {PyBytes_AsString(bytes.ptr()), (int64_t)PyBytes_Size(bytes.ptr())};
  }

  std::vector<nb::object> kept_;
};

class BoundIntegerTable {
 public:
  BoundIntegerTable(In<int64_t, 1> keys, AnyIntegers positions)
      : keys_(keys), positions_(positions),
        table_(keys.data(), stored_positions(positions, (int64_t)keys.shape(0)), (int64_t)keys.shape(0)) {}

  int64_t find(In<int64_t, 1> wanted, Out<int64_t, 1> found) const {
    const int64_t count = wanted.shape(0);
    expect(fits(found, count), shapes_disagree);
    return table_.find(wanted.data(), count, found.data());
  }

 private:
  In<int64_t, 1> keys_;
  AnyIntegers positions_;
  IntegerTable table_;
};

class BoundStringTable {
 public:
  BoundStringTable(In<uint8_t, 1> text, In<int64_t, 1> ends, In<uint64_t, 1> hashes, AnyIntegers positions,
                   In<uint64_t, 1> key)
      : text_(text), ends_(ends), hashes_(hashes), positions_(positions),
        table_(strings_of(text, ends), checked_hashes(hashes, ends), stored_positions(positions, ends.shape(0)),
               hash_key(key)) {}

  // Below zero where not all are strings.
  int64_t find(const nb::typed<nb::list, nb::any>& wanted, Out<int64_t, 1> found) const {
    expect(fits(found, wanted.size()), shapes_disagree);
    const EncodedList encoded(wanted);
    const int64_t count = (int64_t)encoded.texts.size();
    return count == (int64_t)wanted.size() ? table_.find(encoded.texts.data(), count, found.data()) : -1;
  }

  // wanted (m, length): code points, padded with zeros, as NumPy stores strings.
  int64_t find_points(In<uint32_t, 2> wanted, Out<int64_t, 1> found) const {
    const int64_t count = wanted.shape(0), length = wanted.shape(1);
    expect(fits(found, count), shapes_disagree);
    const int64_t at_a_time = std::max<int64_t>(1, std::min<int64_t>(count, (1 << 20) / (4 * length + 1)));
    std::vector<char> bytes((size_t)(at_a_time * 4 * length));
    std::vector<Text> texts(at_a_time);
    int64_t missing = 0;
    for (int64_t from = 0; from < count; from += at_a_time) {
      const int64_t some = std::min(at_a_time, count - from);
      char* end = bytes.data();
      for (int64_t i = 0; i < some; ++i) {
        const uint32_t* points = wanted.data() + (from + i) * length;
        int64_t used = length;
        while (used > 0 && points[used - 1] == 0) --used;
        char* const begin = end;
        for (int64_t j = 0; j < used; ++j) end = write_code_point(points[j], end);
        texts[i] = {begin, end - begin};
      }
      missing += table_.find(texts.data(), some, found.data() + from);
    }
    return missing;
  }

 private:
  static Strings strings_of(const In<uint8_t, 1>& text, const In<int64_t, 1>& ends) {
    return {(const char*)text.data(), (int64_t)text.shape(0), ends.data(), (int64_t)ends.shape(0)};
  }
  static const uint64_t* checked_hashes(const In<uint64_t, 1>& hashes, const In<int64_t, 1>& ends) {
    expect(fits(hashes, ends.shape(0)), shapes_disagree);
    return hashes.data();
  }

  In<uint8_t, 1> text_;
  In<int64_t, 1> ends_;
  In<uint64_t, 1> hashes_;
  AnyIntegers positions_;
  StringTable table_;
};

// The strings at these positions.
nb::typed<nb::list, nb::str> strings_at(In<uint8_t, 1> text, In<int64_t, 1> ends, In<int64_t, 1> positions) {
  const Strings strings = {(const char*)text.data(), (int64_t)text.shape(0), ends.data(), (int64_t)ends.shape(0)};
  nb::typed<nb::list, nb::str> found;
  for (size_t i = 0; i < positions.shape(0); ++i) {
    const int64_t position = positions.data()[i];
    if (position < 0 || position >= strings.n) throw std::runtime_error("an id points to no item");
    const Text one = strings.at(position);
    nb::object string = nb::steal(PyUnicode_DecodeUTF8(one.bytes, (Py_ssize_t)one.size, "surrogatepass"));
    if (!string.is_valid()) throw nb::python_error();
    found.append(string);
  }
  return found;
}

}  // namespace

void bind_ids(nb::module_& m) {
  nb::class_<BoundIntegerTable>(m, "IntegerTable")
      .def(nb::init<In<int64_t, 1>, AnyIntegers>(), "keys"_a, "positions"_a)
      .def("find", &BoundIntegerTable::find, "wanted"_a, "found"_a,
           "Fill found (m,) with the positions of ids (m,), -1 where there is none; return how often that is.");
  nb::class_<BoundStringTable>(m, "StringTable")
      .def(nb::init<In<uint8_t, 1>, In<int64_t, 1>, In<uint64_t, 1>, AnyIntegers, In<uint64_t, 1>>(), "text"_a,
           "ends"_a, "hashes"_a, "positions"_a, "key"_a)
      .def("find", &BoundStringTable::find, "wanted"_a, "found"_a,
           "Fill found (m,) likewise for strings; return how often there is none, or -1 if not all are strings.")
      .def("find_points", &BoundStringTable::find_points, "wanted"_a, "found"_a,
           "The same for strings given as code points (m, length), padded with zeros.");
  m.def("strings_at", &strings_at, "text"_a, "ends"_a, "positions"_a,
        "Return the strings at positions (m,) of a text with ends (n,).");
  m.def("read_integers", &read_integers, "values"_a, "integers"_a,
        "Fill integers (m,) from a list; return whether all are int and fit into 64 bits.");
  m.def("hash_strings", &hash_strings, "text"_a, "ends"_a, "key"_a, "hashes"_a,
        "Fill hashes (m,) with the hashes of strings in text, with ends (m,), under a key (2,).");
}

}  // namespace softindex
