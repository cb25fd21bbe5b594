"""Print the table of pairs as Markdown, and what is wrong with it to stderr."""

from __future__ import annotations

import sys

from tests.pairs.table import page, problems, read

table = read()
print(page(table))
for problem in problems(table):
    print(problem, file=sys.stderr)
