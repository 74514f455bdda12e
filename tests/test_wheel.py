"""The wheel, built from the source archive and started from another folder, behaves as the checkout does."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, cwd: Path, pythonpath: Path | None = None) -> str:
    environment = dict(os.environ)
    if pythonpath is not None:
        environment["PYTHONPATH"] = str(pythonpath)
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, and the wheel made from it; with what is installed here, so nothing is fetched."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    install = ("install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    run(sys.executable, "-m", "pip", *install, cwd=folder)
    return folder


def tree(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_with_conf_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"builder"}
    assert {f"builder/conf/{name}" for name in tree(ROOT / "conf")} <= names
    assert {f"builder/{name}" for name in tree(ROOT / "builder")} <= names
    assert "builder/conf/config.yaml" in names


def test_the_source_archive_has_conf_at_the_top(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"conf/config.yaml", "builder/__init__.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert {name.partition("/")[0] for name in names}.isdisjoint({".venv", ".git", "dist"})


def test_metadata(installed: Path) -> None:
    (info,) = installed.glob("builder-*.dist-info")
    scripts = ConfigParser()
    scripts.read(info / "entry_points.txt")
    assert dict(scripts["console_scripts"]) == {"builder": "builder.cli:main"}
    metadata = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8"))
    version = run(sys.executable, "-c", "import builder; print(builder.__version__)", cwd=ROOT).strip()
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("builder", version, "MIT")
    assert metadata["Requires-Python"] == ">=3.11"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cfg", "job"],
        ["--help"],
        ["task=plan", "output=json", "hardware=amd", "spec=mtp", "pp=4"],
        ["model=v4_flash", "hardware=amd", "spec=none", "pp=4"],
    ],
    ids=" ".join,
)
def test_the_wheel_answers_as_the_checkout_does(installed: Path, tmp_path: Path, arguments: list[str]) -> None:
    where = run(sys.executable, "-c", "import builder; print(builder.__file__)", cwd=tmp_path, pythonpath=installed)
    assert Path(where.strip()).is_relative_to(installed)
    from_wheel = run(sys.executable, "-m", "builder", *arguments, cwd=tmp_path, pythonpath=installed)
    from_script = run(installed / "bin" / "builder", *arguments, cwd=tmp_path, pythonpath=installed)
    from_checkout = run(sys.executable, "-m", "builder", *arguments, cwd=ROOT, pythonpath=ROOT)
    assert from_wheel
    assert from_wheel == from_checkout
    assert from_script == from_checkout
    assert list(tmp_path.iterdir()) == [], "a run without out= writes no file"
