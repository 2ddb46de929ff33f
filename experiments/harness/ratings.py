"""Files of ratings with times, such as MovieLens: the films of each user in order of time, and when each was rated."""

import gzip
from itertools import islice

import numpy as np

COLUMNS = 4
"""User, item, rating and time in seconds, separated by tabs."""


def open_lines(path):
    """The lines of a text file, plain or .gz."""
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def is_ratings(path):
    """Whether a file holds ratings with times: four columns, separated by tabs."""
    with open_lines(path) as lines:
        return all(line.count("\t") == COLUMNS - 1 for line in islice(lines, 1))


def read_ratings(path):
    """Events of each user in order of time, as arrays (m, 3): item and user, numbered from 0, with the time between.

    Every rating is an event, whatever its value.  Events of the same second stay in the order of the file.  If a user
    rated an item more than once, the first rating counts.
    """
    with open_lines(path) as lines:
        rows = np.loadtxt(lines, np.int64, delimiter="\t", usecols=(0, 1, 3), ndmin=2)
    users, items = (np.unique(column, return_inverse=True)[1] for column in rows.T[:2])
    events = np.stack([items, rows[:, 2], users], axis=1)
    events = events[np.lexsort((rows[:, 2], users))]
    _, first = np.unique(events[:, [2, 0]], axis=0, return_index=True)
    events = events[np.sort(first)]
    return np.split(events, np.flatnonzero(np.diff(events[:, 2])) + 1)
