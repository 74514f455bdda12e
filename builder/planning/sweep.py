"""A sweep: every row is composed and planned on its own, so one that is refused or too large is a row, not the end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from builder.errors import BuilderError, ConfigError, Problem, RankError
from builder.planning import files
from builder.planning.tasks import PLANS, SWEPT, runner
from builder.schema.config import BuildConfig

Row = dict[str, Any]

FITS, TOO_LARGE, NOT_JUDGED, REFUSED, FAILED = "fits", "too large", "not judged", "refused", "failed"
DONE, NO = "done", "no"
FINISHED = (FITS, TOO_LARGE, NOT_JUDGED, DONE, NO)
FIGURES = (
    "fits",
    "limiting_rank",
    "bytes",
    "free_bytes",
    "longest_request",
    "tokens",
    "requests",
    "ranks",
    "dp",
    "partition",
)
NOT_OF_A_ROW = ("out", "output", "report")
SECONDS_BETWEEN_WRITES = 2.0
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class RowLine:
    """One row before it is planned. ``compose`` raises ConfigError where the row is refused."""

    overrides: dict[str, Any]
    compose: Callable[[], BuildConfig]


@dataclass(slots=True)
class Sweep:
    """Rows on their way.

    folder: where they are kept, and where finished ones are found again; launch: plans many configurations at once,
    elsewhere; without it each is planned here when its turn comes; version: rows of another version are planned again.
    """

    folder: Path | None = None
    warn: Callable[[str], None] = lambda text: None
    launch: Callable[[list[BuildConfig]], list[Row]] | None = None
    version: str = ""
    rows: list[Row] = field(default_factory=list[Row])
    _before: dict[str, Row] = field(default_factory=dict[str, Row])
    _written: float = 0.0

    def run(self, lines: Sequence[RowLine], each: Callable[[int], None] = lambda done: None) -> list[Row]:
        """Plan every line in order; ``each`` hears how many are done."""
        self._before = self._read()
        finish = plan_row if self.launch is None else self._launched(lines)
        try:
            for line in lines:
                self.rows.append(self._row(line, finish))
                each(len(self.rows))
                if time.monotonic() - self._written > SECONDS_BETWEEN_WRITES:
                    self._write([*self.rows, *self._not_reached()])
        except BaseException:
            self._write([*self.rows, *self._not_reached()])
            raise
        self._write(self.rows)
        return self.rows

    def _row(self, line: RowLine, finish: Callable[[BuildConfig], Row]) -> Row:
        try:
            config = line.compose()
            key = config_key(config, self.version)
            if key in self._before:
                return {**self._before[key], "overrides": line.overrides}
            return {"overrides": line.overrides, **finish(config), "key": key}
        except BuilderError as error:
            return {"overrides": line.overrides, **_refused(error), "key": _hash(line.overrides)}
        except Exception:  # noqa: BLE001 - whatever it is, the other rows can still be planned
            return {"overrides": line.overrides, **_failed(), "key": _hash(line.overrides)}

    def _launched(self, lines: Iterable[RowLine]) -> Callable[[BuildConfig], Row]:
        """Plan all that is not finished at once, and look the rows up afterwards."""
        pending: dict[str, BuildConfig] = {}
        for line in lines:
            try:
                config = line.compose()
            except Exception:  # noqa: BLE001 - the row says so when its turn comes
                continue
            pending.setdefault(config_key(config, self.version), config)
        pending = {key: config for key, config in pending.items() if key not in self._before}
        assert self.launch is not None
        found = dict(zip(pending, self.launch(list(pending.values())) if pending else [], strict=True))
        return lambda config: found[config_key(config, self.version)]

    def _not_reached(self) -> Iterator[Row]:
        reached = {row["key"] for row in self.rows}
        yield from (row for key, row in self._before.items() if key not in reached)

    def _read(self) -> dict[str, Row]:
        path = self.folder / "sweep.json" if self.folder else None
        if path is None or not path.exists():
            return {}
        try:
            rows = cast("list[Row]", json.loads(path.read_text(encoding="utf-8")))
            return {row["key"]: row for row in rows if row["status"] in FINISHED and isinstance(row["key"], str)}
        except (OSError, ValueError, TypeError, KeyError) as error:
            aside = path.with_name(f"sweep.json.unreadable-{time.time_ns()}")
            path.rename(aside)
            self.warn(f"{path} cannot be read ({type(error).__name__}); moved to {aside.name}, all rows again")
            return {}

    def _write(self, rows: Iterable[Row]) -> None:
        self._written = time.monotonic()
        if self.folder is not None:
            from builder.planning.sweep_table import csv_text, figure_names

            kept = list(rows)
            files.write(self.folder / "sweep.json", json.dumps(kept, indent=1) + "\n")
            files.write(self.folder / "sweep.csv", csv_text(kept, figure_names(kept) or FIGURES))


def plan_row(config: BuildConfig) -> Row:
    """Status, reason and figures of one configuration. A bug is this row's reason, and the others go on."""
    try:
        if config.task not in SWEPT:
            raise _no_row("task", config.task, f"use {' or '.join(f'task={task}' for task in SWEPT)}")
        if config.bench is not None and config.bench.what == "stash":
            raise _no_row("bench.what", "stash", "use bench.what=forward")
        # Whatever one row prints on its way would stand in the sweep's own output.
        outcome = runner(config.task)(dataclasses.replace(config, report=None, output="json"))
        if config.task in PLANS:
            return {**verdict(outcome.document), **figures(outcome.document)}
        return {"status": NO if outcome.exit_code else DONE, "reason": None, **(outcome.row or {})}
    except RankError as error:
        return {"status": FAILED, "reason": str(error)}
    except BuilderError as error:
        return _refused(error)
    except Exception:  # noqa: BLE001 - whatever it is, the other rows can still be planned
        return _failed()


def verdict(document: dict[str, Any]) -> Row:
    """Does it fit, and if not, what is missing."""
    if document["fits"] is None:
        return {"status": NOT_JUDGED, "reason": None}
    if document["fits"]:
        return {"status": FITS, "reason": None}
    rank = document["ranks"][document["limiting_rank"]]
    free, length = rank["free_bytes"], document["runtime"]["max_model_len"]
    if free < 0:
        words = f"lacks {-free / GIB:,.2f} GiB before any request"
    else:
        words = f"has {free / GIB:,.2f} GiB free, too little for one request of {length:,} tokens"
    return {"status": TOO_LARGE, "reason": f"rank {rank['rank']} {words}"}


def figures(document: dict[str, Any]) -> Row:
    """The numbers of a row. bytes: of the largest rank; capacity: of the rank that has least of it."""
    ranks = document["ranks"]
    capacity = [rank["capacity"] for rank in ranks if rank["capacity"] is not None]

    def least(name: str) -> int | None:
        return min((entry[name] for entry in capacity), default=None)

    return {
        "fits": document["fits"],
        "limiting_rank": document["limiting_rank"],
        "bytes": max(sum(rank["bytes"].values()) for rank in ranks),
        "free_bytes": ranks[document["limiting_rank"]]["free_bytes"],
        "longest_request": least("longest_request"),
        "tokens": least("tokens"),
        "requests": least("requests"),
        "ranks": len(ranks),
        "dp": document["parallel"]["dp"],
        "partition": document["parallel"]["partition"],
    }


def config_key(config: BuildConfig, version: str) -> str:
    """A hash of the resolved configuration, where it writes left out, and of the version that planned it."""
    values = dataclasses.asdict(config)
    return _hash([version, {name: values[name] for name in values if name not in NOT_OF_A_ROW}])


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _no_row(key: str, value: str, works: str) -> ConfigError:
    return ConfigError([Problem(key, value, "makes no row of a sweep", works)])


def _failed() -> Row:
    return {"status": FAILED, "reason": traceback.format_exc()}


def _refused(error: BuilderError) -> Row:
    words = [str(problem) for problem in error.problems] if isinstance(error, ConfigError) else [str(error)]
    return {"status": REFUSED, "reason": " | ".join(words)}
