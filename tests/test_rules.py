"""What rules are: findings, severities, sources."""

from __future__ import annotations

import pytest

import builder
from builder.assembly.stages import assemble
from builder.planning.rules import ENGINE_NAMES, NOTE, REFUSAL, WARNING, findings
from builder.planning.rules_engines import ENGINE_RULES
from builder.planning.rules_general import GENERAL_RULES


def test_findings_serve_without_ranks_and_for_another_engine() -> None:
    config = builder.compose(["task=plan", "model=v4_flash", "pp=2", "spec=mtp"])
    found = findings(config, assemble(config), "vllm")
    assert found[0].severity == REFUSAL
    assert found[0].rule == "pp-drafter"
    assert {one.severity for one in findings(config, assemble(config))} <= {NOTE, WARNING}


def test_rules_have_names_of_their_own_and_sources() -> None:
    rules = (*GENERAL_RULES, *ENGINE_RULES)
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.source for rule in rules)
    assert all(rule.engines and set(rule.engines) <= set(ENGINE_NAMES) for rule in ENGINE_RULES)
    assert all(not rule.engines and rule.severity != REFUSAL for rule in GENERAL_RULES)


@pytest.mark.parametrize(("device", "bound", "stages"), [("rtx_pro_6000", 10, 11), ("h100", 12, 13), ("gb200", 5, 6)])
def test_the_devices_that_are_named_hold_it(device: str, bound: int, stages: int) -> None:
    line = ["task=plan", "model=v4_pro", f"hardware.device={device}"]
    said = next(one for one in builder.plan(builder.compose(line)).findings if one.rule == "budget")
    assert f"at least {bound} devices ({stages} do: pp={stages} tp=1)" in str(said)
    fits = [builder.plan(builder.compose([*line, f"pp={pp}"])).fits for pp in range(bound, stages + 1)]
    assert fits == [False] * (stages - bound) + [True]
