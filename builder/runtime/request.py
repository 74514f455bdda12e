"""A prompt on its way through generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from builder.runtime.sampling import Sampler


@dataclass(eq=False)
class Request:
    """A prompt and its new tokens. ``fed``: how many of both are in the cache; ``slot``: its place there."""

    number: int
    prompt: list[int]
    sampler: Sampler
    limit: int
    stop: frozenset[int]
    tokens: list[int] = field(default_factory=list[int])
    fed: int = 0
    slot: int = -1

    @property
    def sequence(self) -> list[int]:
        """All tokens known so far."""
        return [*self.prompt, *self.tokens]

    @property
    def waiting(self) -> list[int]:
        """Known tokens that the target has not computed yet: the rest of the prompt, then one token at a time."""
        return self.sequence[self.fed :]

    @property
    def decoding(self) -> bool:
        """Its prompt is computed: it waits for the one token after the last."""
        return bool(self.tokens) and self.fed == len(self.prompt) + len(self.tokens) - 1

    @property
    def finished(self) -> bool:
        """It has its last token."""
        return len(self.tokens) >= self.limit or bool(self.tokens and self.tokens[-1] in self.stop)

    def take(self, tokens: list[int]) -> list[int]:
        """Append new tokens up to the limit or the stop token; returns those that were taken."""
        taken: list[int] = []
        for token in tokens:
            if self.finished:
                break
            self.tokens.append(token)
            taken.append(token)
        return taken
