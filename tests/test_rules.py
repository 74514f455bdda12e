"""What rules are: findings, severities, sources."""

from __future__ import annotations

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
