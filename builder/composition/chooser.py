"""Which option of every group is in force, and the tree that Hydra makes of them."""

from __future__ import annotations

from collections.abc import Mapping

from builder.composition import hydra_keys, unknown
from builder.composition.combine import combined
from builder.composition.hydra_groups import Groups, HydraGroups, MissingOptionError
from builder.composition.line import DRAFT, GROUPS, Line
from builder.composition.tree import complete, get
from builder.errors import ConfigError, Problem

SHARE_AFTER = 3
"""So many compositions are made by Hydra in full; after that options are composed one by one and put together."""


class Chooser:
    """Composes choices, and keeps what it composed."""

    def __init__(self, groups: HydraGroups) -> None:
        self.groups = groups
        self._composed: dict[tuple[str, ...], Groups] = {}

    def choose(self, choices: Mapping[str, str], line: Line) -> Groups:
        """The composition of a command line's choices and Hydra items; problems go to the line."""
        try:
            groups = self.compose(choices)
        except ConfigError:
            if DRAFT not in choices:
                raise
            choices = {key: option for key, option in choices.items() if key != DRAFT}
            groups = self.compose(choices)
            if "draft" in groups.tree:
                raise
            words = f"{unknown.choice('spec', groups.choices)} has no draft"
            works = "add spec=draft_model, or leave it out"
            line.refuse([Problem(DRAFT, line.choices.get(DRAFT), words, works)], "draft")
        return self._with_hydra(choices, groups, line) if line.hydra else groups

    def _with_hydra(self, choices: Mapping[str, str], groups: Groups, line: Line) -> Groups:
        """Hydra's groups first: they decide which of its keys there are."""
        texts: tuple[str, ...] = ()
        for of_groups in (True, False):
            items = [item for item in line.hydra if ("/" in item.key) is of_groups]
            wrong = [problem for item in items for problem in hydra_keys.problems(item, groups, self.groups)]
            if wrong:
                line.problems += wrong
                return groups
            texts += tuple(item.text for item in items)
            groups = self.compose(choices, texts)
        return groups

    def compose(self, choices: Mapping[str, str], hydra: tuple[str, ...] = ()) -> Groups:
        """The composition of choices by group. Raises ConfigError where a file cannot be composed."""
        texts = (*(f"{_mark(key)}{key}={option}" for key, option in choices.items()), *hydra)
        if texts not in self._composed:
            if not hydra and len(self._composed) >= SHARE_AFTER and len(choices) > 1 and set(choices) <= set(GROUPS):
                singles = {group: self.compose({group: option}) for group, option in choices.items()}
                self._composed[texts] = combined(self.compose({}), singles)
            else:
                self._composed[texts] = self._by_hydra(texts)
                complete(self._composed[texts].tree)
        return self._composed[texts]

    def _by_hydra(self, texts: tuple[str, ...]) -> Groups:
        """Hardware of the user's own has no kernels file of its name: it uses its vendor's."""
        try:
            return self.groups.compose(texts)
        except MissingOptionError as error:
            if not error.path.startswith("kernels/") or any(text.startswith("kernels=") for text in texts):
                raise
        groups = self.groups.compose((*texts, "kernels=reference"))
        vendor = str(get(groups.tree, "hardware.vendor"))
        known = vendor in self.groups.options("kernels")
        return self.groups.compose((*texts, f"kernels={vendor}")) if known else groups


def _mark(key: str) -> str:
    """Groups that are not in the defaults list (``experiment``) are added to it."""
    return "" if key in GROUPS or key == DRAFT else "+"
