"""Functions take turns on the clock, and the machine is named."""

from softindex.evaluate.machine import machine
from softindex.evaluate.timing import take_turns


def test_the_machine_is_described():
    assert "cores, kernels " in machine()


def test_turns_are_taken_in_stretches():
    order, done = [], []
    functions = {name: (lambda argument, name=name: order.append((name, argument))) for name in "ab"}
    found = take_turns(functions, [1, 2, 3], stretch=2, report=lambda *progress: done.append(progress))
    assert order == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]
    assert {name: len(values) for name, values in found.items()} == {"a": 3, "b": 3}
    assert done == [(2, 3), (3, 3)]
