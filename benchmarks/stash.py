"""The table of vLLM PR #50312 for V4-Pro, three ways in one run: ``python benchmarks/stash.py [KEY=VALUE …]``.

The same as ``python -m builder task=bench bench.what=stash``, without a checkpoint; runs on a GPU unchanged.
"""

from __future__ import annotations

import sys

from builder.cli import main

if __name__ == "__main__":
    sys.exit(main(["task=bench", "bench.what=stash", *sys.argv[1:]]))
