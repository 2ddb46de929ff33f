"""Files that lie with valid checksums are refused or used: no crash, no hang, no raw exception, no NaN."""

import pytest
from mutations import watch

FILES = 150
"""Of each kind; `make mutate` tries 3000."""


@pytest.mark.parametrize("kind", ["index", "mixture-index", "adaptive-softmax"])
def test_a_file_that_lies_is_refused_or_answers_in_numbers(kind):
    findings, _ = watch(kind, 0, FILES)
    assert findings == []
