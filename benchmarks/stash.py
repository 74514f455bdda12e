"""The table of vLLM PR #50312 for V4-Pro, three ways in one run: ``python benchmarks/stash.py [KEY=VALUE …]``.

The same as ``python -m builder task=bench bench.what=stash`` in bfloat16, as the release runs; without a checkpoint,
and unchanged on a GPU.
"""

from __future__ import annotations

import sys

from builder.cli import main

DTYPE = "runtime.dtype="

if __name__ == "__main__":
    given = sys.argv[1:]
    dtype = [] if any(one.startswith(DTYPE) for one in given) else [f"{DTYPE}bfloat16"]
    sys.exit(main(["task=bench", "bench.what=stash", *dtype, *given]))
