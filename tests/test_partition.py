"""The partition is the optimum that a brute force over all splits finds."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.assembly.partition import Load, auto_partition, even_partition


def brute_force(layers: list[int], first: Load, last: Load, stages: int) -> list[int]:
    def key(sizes: list[int]) -> tuple[int, int, list[int]]:
        largest, smallest = [], []
        start = 0
        for stage, size in enumerate(sizes):
            own = sum(layers[start : start + size])
            ends = [load for load, at in ((first, 0), (last, stages - 1)) if at == stage]
            largest.append(own + sum(load.largest for load in ends))
            smallest.append(own + sum(load.smallest for load in ends))
            start += size
        return max(largest), max(largest) - min(smallest), [-size for size in sizes]

    count = len(layers)
    cuts = combinations(range(1, count), stages - 1)
    splits = [[b - a for a, b in zip((0, *cut), (*cut, count), strict=True)] for cut in cuts]
    return min(splits, key=key)


@st.composite
def loads(draw: st.DrawFn) -> Load:
    largest = draw(st.integers(0, 30))
    return Load(largest, largest - draw(st.integers(0, min(3, largest))))


@settings(max_examples=400, deadline=None)
@given(st.data(), st.lists(st.integers(1, 12), min_size=1, max_size=9), loads(), loads())
def test_auto_is_the_brute_force_optimum(data: st.DataObject, layers: list[int], first: Load, last: Load) -> None:
    stages = data.draw(st.integers(1, len(layers)))
    assert auto_partition(layers, first, last, stages) == brute_force(layers, first, last, stages)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(61, 4, [16, 15, 15, 15]), (43, 2, [22, 21]), (8, 3, [3, 3, 2]), (5, 5, [1, 1, 1, 1, 1])],
)
def test_even_puts_the_remainder_first(layers: int, stages: int, expected: list[int]) -> None:
    assert even_partition(layers, stages) == expected


def test_ties_give_the_lexicographically_largest_list() -> None:
    assert auto_partition([1, 1, 1], Load(0, 0), Load(0, 0), 2) == [2, 1]
