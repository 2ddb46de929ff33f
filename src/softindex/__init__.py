"""softindex: softmax over millions of items, in microseconds, with the error stated."""
