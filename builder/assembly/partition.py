"""Which layers stand on which pipeline stage: the exact optimum, in milliseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


def even_partition(layers: int, stages: int) -> list[int]:
    """layers // stages each, one more on the first (layers mod stages) stages."""
    share, rest = divmod(layers, stages)
    return [share + (stage < rest) for stage in range(stages)]


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes of something on the stage's largest and on its smallest rank (they differ where tp cuts unevenly)."""

    largest: int
    smallest: int


def auto_partition(layers: Sequence[int], first: Load, last: Load, stages: int) -> list[int]:
    """The layer counts that minimise the largest rank, then largest minus smallest, then are lexicographically largest.

    layers: bytes of each; first, last: what the first and the last stage hold beside layers.
    """
    return _Search(layers, first, last, stages).best()


class _Search:
    def __init__(self, layers: Sequence[int], first: Load, last: Load, stages: int) -> None:
        self.sums = [0, *accumulate(layers)]
        self.layers, self.stages = len(layers), stages
        self.first, self.last = first, last

    def best(self) -> list[int]:
        largest = self._smallest_possible_maximum()
        smallest = self._largest_possible_minimum(largest)
        return self._lexicographically_largest(largest, smallest)

    def _beside(self, stage: int) -> tuple[int, int]:
        # What a stage holds beside layers, on its largest and on its smallest rank.
        ends = [load for load, at in ((self.first, 0), (self.last, self.stages - 1)) if at == stage]
        return sum(load.largest for load in ends), sum(load.smallest for load in ends)

    def _furthest(self, stage: int, start: int, limit: int) -> int:
        # The largest end such that layers start..end fit the limit and every later stage still gets a layer.
        room = limit - self._beside(stage)[0] + self.sums[start]
        return min(bisect_right(self.sums, room) - 1, self.layers - (self.stages - 1 - stage))

    def _smallest_possible_maximum(self) -> int:
        low, high = 0, self.sums[-1] + self.first.largest + self.last.largest
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._feasible(middle) else (middle + 1, high)
        return low

    def _feasible(self, limit: int) -> bool:
        start = 0
        for stage in range(self.stages):
            end = self._furthest(stage, start, limit)
            if end <= start:
                return False
            start = end
        return start == self.layers

    def _largest_possible_minimum(self, limit: int) -> int:
        # best[end]: over all ways to put the first ``end`` layers on the stages so far, the largest smallest stage
        best = {0: self.sums[-1] + self.first.largest + self.last.largest}
        for stage in range(self.stages):
            beside = self._beside(stage)[1]
            reached: dict[int, int] = {}
            for start, so_far in best.items():
                for end in range(start + 1, self._furthest(stage, start, limit) + 1):
                    value = min(so_far, self.sums[end] - self.sums[start] + beside)
                    if value > reached.get(end, -1):
                        reached[end] = value
            best = reached
        return best[self.layers]

    def _lexicographically_largest(self, limit: int, floor: int) -> list[int]:
        ends = self._completable(limit, floor)
        result: list[int] = []
        start = 0
        for stage in range(self.stages):
            end = max(end for end in self._choices(stage, start, limit, floor) if end in ends[stage])
            result.append(end - start)
            start = end
        return result

    def _choices(self, stage: int, start: int, limit: int, floor: int) -> range:
        needed = floor - self._beside(stage)[1] + self.sums[start]
        shortest = max(
            start + 1, next((e for e in range(start + 1, self.layers + 1) if self.sums[e] >= needed), 1 << 62)
        )
        return range(shortest, self._furthest(stage, start, limit) + 1)

    def _completable(self, limit: int, floor: int) -> list[set[int]]:
        # For each stage, the ends from which the stages after it can be filled legally.
        ends: list[set[int]] = [set() for _ in range(self.stages)]
        ends[-1] = {self.layers}
        for stage in range(self.stages - 1, 0, -1):
            ends[stage - 1] = {
                start
                for start in range(stage, self.layers)
                if any(end in ends[stage] for end in self._choices(stage, start, limit, floor))
            }
        return ends
