"""A launcher of Hydra's (``hydra/launcher=joblib``) for the rows of a sweep: composed before, only run there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from builder.composition.hydra_groups import PRIMARY, HydraGroups
from builder.schema.config import BuildConfig

Job = Callable[[BuildConfig], dict[str, Any]]


class _Jobs:
    """What the launcher carries to its workers: every configuration, picked by the job's number."""

    def __init__(self, job: Job, configs: Sequence[BuildConfig]) -> None:
        self.job, self.configs = job, configs

    def __call__(self, config: DictConfig) -> dict[str, Any]:
        return self.job(self.configs[int(HydraConfig.get().job.num)])


def launch(groups: HydraGroups, hydra: Iterable[str], job: Job, configs: Sequence[BuildConfig]) -> list[dict[str, Any]]:
    """Run ``job`` on every configuration through the launcher that ``hydra`` names; results in order."""
    with groups.hydra(), tempfile.TemporaryDirectory(prefix="builder-sweep-") as folder:
        quiet = ["hydra/hydra_logging=none", "hydra/job_logging=none", f"hydra.sweep.dir='{folder}'"]
        runner = cast("Any", GlobalHydra.instance().hydra)
        config = runner.compose_config(PRIMARY, [*quiet, *hydra, "hydra.mode=MULTIRUN"], RunMode.MULTIRUN)
        context = HydraContext(config_loader=groups.loader, callbacks=Callbacks(config))
        launcher = Plugins.instance().instantiate_launcher(context, _Jobs(job, configs), config)
        done = launcher.launch([[] for _ in configs], initial_job_idx=0)
    return [_result(one) for one in done]


def _result(done: Any) -> dict[str, Any]:
    if done.status is JobStatus.COMPLETED:
        return done.return_value
    return {"status": "failed", "reason": repr(done._return_value)}
