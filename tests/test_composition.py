"""Every option composes, typed; values are set where a key is; a host application's Hydra is left alone."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import builder
from builder.composition import Composer, compose
from builder.composition.chooser import Chooser
from builder.composition.hydra_groups import HydraGroups
from builder.composition.line import DRAFT, GROUPS
from builder.errors import ConfigError
from builder.paths import conf_dir
from builder.schema.config import TASKS
from builder.schema.spec import SPEC_CONFIGS

OPTIONS = [(path.parent.name, path.stem) for path in sorted(conf_dir().rglob("*.yaml")) if path.parent != conf_dir()]
NEEDS = {"spec=dspark": "model=v4_pro_0813"}
"""What an option needs beside it. model=custom needs a file and has tests of its own."""


@pytest.mark.parametrize(("group", "option"), [option for option in OPTIONS if option != ("model", "custom")])
def test_every_option_of_every_group_composes(group: str, option: str) -> None:
    choice = f"{group}={option}"
    config = compose([choice, NEEDS.get(choice, "pp=1")])
    assert "auto" not in (config.runtime.dtype, config.runtime.max_model_len)
    assert type(config.spec) is SPEC_CONFIGS[config.spec.method]


@pytest.mark.parametrize("path", sorted(conf_dir().rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_says_what_it_is_and_keeps_its_defaults_list_clean(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("# @")]
    assert re.match(r"# [A-Z]\S* ", lines[0]), lines[0]
    assert lines[1].startswith("# python -m builder")
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")).get("defaults", []):
        key = next(iter(entry)) if isinstance(entry, dict) else entry
        assert re.fullmatch(r"(override )?/?[\w@.]+", key), f"a misspelt keyword is dropped in silence: {key}"


def test_the_groups_and_tasks_of_the_package() -> None:
    assert {group for group, _ in OPTIONS} == set(GROUPS)
    assert {option for group, option in OPTIONS if group == "task"} == set(TASKS)
    assert {option for group, option in OPTIONS if group == "spec"} == set(SPEC_CONFIGS)


def test_defaults() -> None:
    config = compose()
    assert (config.model.name, config.hardware.vendor, config.hardware.device) == ("v4_pro", "nvidia", "b300")
    assert (config.spec.method, config.cache.layout, config.task, config.output, config.seed) == (
        "none",
        "fp8",
        "build",
        "table",
        0,
    )
    runtime = config.runtime
    assert (runtime.dtype, runtime.weights, runtime.max_model_len) == ("bfloat16", "native", 131_072)
    assert (runtime.max_num_batched_tokens, runtime.max_num_seqs) == (8192, 64)
    assert (runtime.memory_fraction, runtime.reserve_bytes) == (0.9, 0)
    assert (config.parallel.partition, config.parallel.shared_expert) == ("auto", "sharded")


@pytest.mark.parametrize(
    ("method", "tokens"), [("none", 0), ("ngram", 4), ("mtp", 1), ("eagle", 1), ("draft_model", 4), ("dspark", 5)]
)
def test_default_number_of_speculative_tokens(method: str, tokens: int) -> None:
    model = "v4_pro_0813" if method == "dspark" else "v4_pro"
    assert compose([f"spec={method}", f"model={model}"]).spec.drafts == tokens


def test_defaults_of_tasks() -> None:
    generate = compose(["task=generate"]).generate
    assert generate is not None
    assert (generate.max_new_tokens, generate.temperature, generate.top_p) == (128, 0, 1)
    assert (generate.ignore_eos, generate.stream) == (False, True)
    verify = compose(["task=verify"])
    assert verify.verify is not None
    assert (verify.verify.against, verify.verify.tolerance) == ("expected", 1e-4)
    assert (verify.cache.layout, verify.runtime.dtype) == ("plain", "float32")
    named = compose(["task=verify", "cache=fp8", "runtime.dtype=bfloat16"])
    assert (named.cache.layout, named.runtime.dtype) == ("fp8", "bfloat16")


def test_cpu_takes_a_plain_cache_and_float32_unless_named() -> None:
    plain = compose(["hardware=cpu"])
    assert (plain.cache.layout, plain.runtime.dtype) == ("plain", "float32")
    named = compose(["hardware=cpu", "cache=fp8", "runtime.dtype=bfloat16"])
    assert (named.cache.layout, named.runtime.dtype) == ("fp8", "bfloat16")


def test_a_small_model_limits_the_length() -> None:
    assert compose(["model=tiny", "hardware=cpu"]).runtime.max_model_len == 4096


@pytest.mark.parametrize("line", ["pp=4", "parallel.pp=4", "pp=4 parallel.pp=4", "parallel={pp:4}", "+pp=4", "++pp=4"])
def test_shorthands(line: str) -> None:
    assert compose(line.split()).parallel.pp == 4


def test_a_draft_is_an_option_of_the_model_group() -> None:
    draft = compose(["spec=draft_model"]).draft
    assert draft is not None
    assert draft.name == "v4_flash"
    small = compose(["model=tiny", "hardware=cpu", "spec=draft_model", "model@draft=tiny", "draft.num_hash_layers=1"])
    assert small.draft is not None
    assert (small.draft.name, small.draft.num_hash_layers, small.model.num_hash_layers) == (
        "tiny",
        1,
        compose(["model=tiny", "hardware=cpu"]).model.num_hash_layers,
    )
    assert compose(["spec=mtp"]).draft is None


def test_free_text_is_taken_literally() -> None:
    text = 'print("hi"), ${x} {a:b} [c]= '
    config = compose([f"prompt={text}", f"command={text}", "seed=${pp}"])
    assert (config.prompt, config.command, config.seed) == (text, text, 1)
    assert compose(["prompt="]).prompt == ""
    assert compose(["+prompt=a,b"]).prompt == "a,b"


def test_values_are_typed() -> None:
    config = compose(["runtime.memory_fraction=1", "hardware.memory_bytes=1e12", "hardware.device=custom"])
    assert isinstance(config.runtime.memory_fraction, float)
    assert config.hardware.memory_bytes == 10**12
    assert compose(["spec=draft_model", "spec.stash=no"]).spec.wants_stash is False
    assert compose(["prompt_ids=[1,2,3]"]).prompt_ids == [1, 2, 3]


def test_nothing_is_shared_between_configurations() -> None:
    first = compose(["model=tiny", "hardware=cpu"])
    first.model.layer_types.append("swa")
    assert compose(["model=tiny", "hardware=cpu"]).model.layer_types != first.model.layer_types


def _pairs() -> list[tuple[str, str]]:
    """Options of different groups, two at a time; of models and tasks those that differ in kind."""
    kept = [
        f"{group}={option}"
        for group, option in OPTIONS
        if (group != "model" or option in ("v4_flash", "tiny")) and (group != "task" or option in ("plan", "verify"))
    ]
    pairs = itertools.combinations(kept, 2)
    return [(one, two) for one, two in pairs if one.partition("=")[0] != two.partition("=")[0]]


@pytest.mark.slow
def test_what_a_sweep_puts_together_is_what_hydra_composes() -> None:
    sharing, plain = Chooser(HydraGroups(conf_dir())), HydraGroups(conf_dir())
    for option in ("amd", "cpu", "xpu"):
        sharing.compose({"hardware": option})
    for pair in _pairs():
        choices = dict(text.split("=") for text in pair)
        by_hydra = Chooser(plain).compose(choices)
        together = sharing.compose(choices)
        assert (together.tree, together.choices) == (by_hydra.tree, by_hydra.choices), pair


@pytest.mark.parametrize(
    "choices",
    [
        {"hardware": "cpu", "cache": "fp8", "spec": "draft_model"},
        {"task": "verify", "hardware": "cpu", "kernels": "reference"},
        {"task": "generate", "model": "tiny", "spec": "mtp"},
    ],
)
def test_shared_compositions_are_hydras(choices: dict[str, str]) -> None:
    sharing = Chooser(HydraGroups(conf_dir()))
    for option in ("amd", "cpu", "xpu"):
        sharing.compose({"hardware": option})
    one, other = sharing.compose(choices), Chooser(HydraGroups(conf_dir())).compose(choices)
    assert (one.tree, one.choices) == (other.tree, other.choices)


def test_a_model_from_a_config_json(tmp_path: Path, flash_config: dict[str, Any]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(flash_config))
    for line in (["model=custom", f"model.config={path}"], ["model=custom", f"model.config={tmp_path}"]):
        assert compose(line).model.name == "v4_flash"
    assert compose([f"checkpoint={tmp_path}"]).model.hidden_size == 4096
    assert compose([f"checkpoint={tmp_path}", "model=v4_flash"]).checkpoint == str(tmp_path)
    changed = compose(["model=custom", f"model.config={path}", "model.index_topk=64"])
    assert changed.model.index_topk == 64
    draft = compose(["spec=draft_model", f"spec.checkpoint={tmp_path}"]).draft
    assert draft is not None
    assert draft.hidden_size == 4096
    path.write_text(json.dumps(flash_config | {"index_topk": 77}))
    assert compose([f"checkpoint={tmp_path}"]).model.name == "custom"


def test_a_user_folder_adds_options(tmp_path: Path) -> None:
    _user_folder(tmp_path)
    composer = Composer([str(tmp_path)])
    mine = composer.compose(["hardware=mine", "pp=4"]).config()
    assert (mine.hardware.device, mine.hardware.total_bytes) == ("big", 500_000_000_000)
    for line in (["+experiment=x"], ["experiment=x"]):
        config = composer.compose(line).config()
        assert (config.hardware.vendor, config.spec.method, config.parallel.pp) == ("amd", "mtp", 8)
        assert config.runtime.max_num_seqs == 7
    config = composer.compose(["experiment=x", "hardware=nvidia", "pp=2", "runtime.max_num_seqs=9"]).config()
    assert (config.hardware.vendor, config.parallel.pp, config.runtime.max_num_seqs) == ("nvidia", 2, 9)


def test_mistakes_in_a_user_folder_name_the_file(tmp_path: Path) -> None:
    _user_folder(tmp_path)
    composer = Composer([str(tmp_path)])
    for line, message in (
        (
            "hardware=wrong",
            "hardware.memry_bytes=5: hardware=wrong has no such key; did you mean hardware.memory_bytes?",
        ),
        ("experiment=stray", "foo=1: there is no such key; it was set by experiment=stray; take it out there"),
        ("experiment=y", "experiment=y: is not known; use one of stray, x"),
    ):
        with pytest.raises(ConfigError) as refused:
            composer.compose([line]).config()
        assert str(refused.value) == message
    with pytest.raises(ConfigError, match=r"configuration: .*broken\.yaml"):
        composer.compose(["hardware=broken"])


def _user_folder(folder: Path) -> None:
    files = {
        "hardware/mine.yaml": "vendor: amd\ndevice: big\ndevices:\n  big: {memory_bytes: 500000000000, arch: gfx950, "
        "fp8: e4m3fn, native_fp4: true, source: me}\n",
        "hardware/wrong.yaml": "vendor: amd\ndevice: big\nmemry_bytes: 5\n",
        "hardware/broken.yaml": "vendor: [\n",
        "experiment/x.yaml": "# @package _global_\ndefaults:\n  - override /hardware: amd\n  - override /spec: mtp\n"
        "pp: 8\nruntime:\n  max_num_seqs: 7\n",
        "experiment/stray.yaml": "# @package _global_\nfoo: 1\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


HOST = """
import sys
from dataclasses import dataclass
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.version import getbase
from omegaconf import OmegaConf

@dataclass
class Host:
    a: int = 1

store = ConfigStore.instance()
store.store(name="config", node=Host)
store.store(group="hardware", name="nvidia", node={"zz": 1})
OmegaConf.register_new_resolver("now", lambda text: "host", replace=True)

def state():
    return (id(GlobalHydra.instance().hydra), HydraConfig.get().job.name, getbase(), id(store.repo), sorted(store.repo),
            OmegaConf.create({"x": "${now:%Y}"}).x, set(Singleton._instances))

@hydra.main(version_base="1.2", config_name="config", config_path=None)
def main(cfg):
    import builder
    before = state()
    assert builder.plan(builder.compose(["pp=4"])).fits
    try:
        builder.compose(["hardwre=amd"])
    except builder.ConfigError as error:
        print(error)
    assert state() == before, (before, state())

main()
"""


def test_a_host_application_keeps_its_hydra(tmp_path: Path) -> None:
    (tmp_path / "host.py").write_text(HOST)
    command = [sys.executable, "host.py", "hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none"]
    root = str(Path(builder.__file__).parents[1])
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "hardwre=amd: there is no such key; did you mean hardware?\n"


def test_importing_the_package_costs_nothing() -> None:
    code = (
        "import builder, sys; assert not {'torch', 'hydra', 'omegaconf', 'rich'} & set(sys.modules); "
        "builder.compose(['pp=4']); assert not {'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(builder.__file__).parents[1], check=True, timeout=60)


def test_the_public_names() -> None:
    assert builder.__all__ == sorted(builder.__all__)
    assert all(hasattr(builder, name) for name in builder.__all__)
    with pytest.raises(AttributeError):
        _ = builder.nothing
    assert DRAFT == "model@draft"
