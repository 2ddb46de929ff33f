"""Merges the answers of shards into those of one index, whatever carries questions and answers between them."""

from softindex.sharded.answering import answer
from softindex.sharded.index import ShardedIndex
from softindex.sharded.joining import describe, join
from softindex.sharded.questions import Answer, Description, Question

__all__ = ["Answer", "Description", "Question", "ShardedIndex", "answer", "describe", "join"]
