"""The options of the model and hardware groups: they compose, and what they hold is legal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from builder.schema.fields import MISSING
from builder.schema.hardware import VENDORS, HardwareConfig, hardware_problems
from builder.schema.model import ModelConfig, model_problems

CONF = Path(__file__).parents[1] / "conf"
MODELS = ("v4_pro", "v4_flash", "v4_pro_base", "v4_flash_base", "v4_pro_0813", "v4_flash_0731", "tiny")
PRIMARY = f"""
defaults:
  - model: v4_pro
  - cache: fp8
  - hardware: nvidia
  - optional model@draft: null
  - _self_
hydra:
  searchpath: ["file://{CONF}"]
"""


@pytest.fixture(scope="module")
def _hydra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "primary.yaml").write_text(PRIMARY)
    with initialize_config_dir(str(folder), version_base="1.3"):
        yield


def composed(*overrides: str) -> Any:
    return compose("primary", list(overrides))


def typed(schema: type, node: Any) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), node))


def test_every_file_is_known() -> None:
    assert {file.stem for file in (CONF / "model").glob("*.yaml")} == {*MODELS, "custom"}
    assert {file.stem for file in (CONF / "hardware").glob("*.yaml")} == set(VENDORS)


@pytest.mark.parametrize("file", sorted([*(CONF / "model").glob("*.yaml"), *(CONF / "hardware").glob("*.yaml")]))
def test_a_file_says_what_it_is_and_how_to_use_it(file: Path) -> None:
    first, second = file.read_text().splitlines()[:2]
    assert first.startswith("# ")
    assert second.startswith("# python -m builder ")
    assert f"{file.parent.name}={file.stem}" in second


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_legal_and_the_same_as_a_draft(name: str) -> None:
    config = composed(f"model={name}", f"model@draft={name}")
    model = typed(ModelConfig, config.model)
    assert model.name == name
    assert list(model_problems(model, "model")) == []
    assert typed(ModelConfig, config.draft) == model


@pytest.mark.usefixtures("_hydra")
def test_a_draft_does_not_touch_the_target() -> None:
    config = composed("model=v4_pro_base", "model@draft=v4_pro_0813", "draft.index_topk=7")
    model, draft = typed(ModelConfig, config.model), typed(ModelConfig, config.draft)
    assert (model.index_topk, model.is_dspark, model.quantization_config.scale_dtype) == (1024, False, "float32")
    assert (draft.index_topk, draft.is_dspark, draft.quantization_config.scale_dtype) == (7, True, "e8m0")


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize("name", ["v4_pro", "v4_flash"])
def test_base_differs_in_its_formats_only(name: str) -> None:
    base = typed(ModelConfig, composed(f"model={name}_base").model)
    assert base.quantization_config.expert_dtype == "fp8"
    base.name, base.quantization_config.expert_dtype, base.quantization_config.scale_dtype = name, "fp4", "e8m0"
    assert base == typed(ModelConfig, composed(f"model={name}").model)


@pytest.mark.usefixtures("_hydra")
def test_custom_names_every_field_and_leaves_the_model_open() -> None:
    node = OmegaConf.to_container(composed("model=custom").model)
    assert isinstance(node, dict)
    assert set(node) == set(ModelConfig.__dataclass_fields__)
    assert {name for name, field in ModelConfig.__dataclass_fields__.items() if field.default == MISSING} - {"name"} | {
        "layer_types"
    } == {name for name, value in node.items() if value == MISSING}


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_names_every_field_but_config(name: str) -> None:
    assert set(composed(f"model={name}").model) == set(ModelConfig.__dataclass_fields__) - {"config"}


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize("vendor", VENDORS)
def test_every_device_of_a_vendor_is_legal(vendor: str) -> None:
    hardware = typed(HardwareConfig, composed(f"hardware={vendor}").hardware)
    assert hardware.vendor == vendor
    for device, facts in hardware.devices.items():
        hardware.device = device
        assert list(hardware_problems(hardware)) == []
        assert facts.source
        assert (hardware.total_bytes is None) == (vendor == "cpu")


@pytest.mark.usefixtures("_hydra")
def test_default_devices() -> None:
    found = {vendor: composed(f"hardware={vendor}").hardware for vendor in VENDORS}
    assert {vendor: node.device for vendor, node in found.items()} == {
        "nvidia": "b300",
        "amd": "mi355x",
        "xpu": "max_1550",
        "cpu": "cpu",
    }
    devices = {device for node in found.values() for device in node.devices}
    assert devices == {
        *("a100_40gb", "a100_80gb", "h100", "h200", "h20", "b200", "b300", "gb200", "gb300", "gh200", "l20"),
        *("rtx_pro_6000", "rtx_5090", "dgx_spark", "mi300x", "mi325x", "mi355x", "max_1550", "arc_pro_b60", "cpu"),
    }
    shared = {device for node in found.values() for device, facts in node.devices.items() if facts.unified_memory}
    assert shared == {"dgx_spark", "cpu"}


@pytest.mark.usefixtures("_hydra")
@pytest.mark.parametrize(
    ("overrides", "layout"),
    [
        (["hardware=cpu"], "plain"),
        (["hardware=cpu", "cache=fp8"], "fp8"),
        (["cache=fp8_fp4", "hardware=cpu"], "fp8_fp4"),
        (["hardware=amd"], "fp8"),
        ([], "fp8"),
    ],
)
def test_cpu_brings_the_plain_cache_unless_another_is_named(overrides: list[str], layout: str) -> None:
    config = composed(*overrides)
    assert config.cache.layout == layout
    assert "cache" not in config.hardware
