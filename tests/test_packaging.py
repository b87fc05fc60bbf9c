"""What is shipped: the version, types, what an import loads, and what a wheel holds."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import textwrap
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import spgnn
from tests.docs.pages import ROOT, printed

PACKAGE = ROOT / "spgnn"
# Extras, and what is heavy and needed by some commands alone.
NOT_IMPORTED = {
    "cupy", "dgl", "IPython", "kahypar", "kaminpar", "matplotlib", "mpi4py", "mtkahypar", "ogb",
    "pandas", "pyarrow", "pymetis", "rich", "scipy.optimize", "scipy.stats", "sklearn",
    "tensorboard", "torch._dynamo", "torch._inductor", "torch_geometric",
}  # fmt: skip


def test_the_version_is_said_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == spgnn.__version__
    assert f"## {spgnn.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_conda_recipe_has_the_same_needs():
    recipe = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["context"]["version"] == spgnn.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needs = {need.replace("torch>", "pytorch>") for need in project["project"]["dependencies"]}
    needs = {need for need in needs if not need.startswith("nanobind")}  # linked statically there
    assert {need.replace(" ", "") for need in recipe["requirements"]["run"]} == {*needs, "python"}
    build = {need.replace(" ", "") for need in recipe["requirements"]["host"]}
    assert set(project["build-system"]["requires"]) <= build


def test_workflows_run_what_there_is():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for workflow in ROOT.glob(".github/workflows/*.yml"):  # a source archive has none
        jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]
        runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        subprocess.run(["bash", "-n"], input="\n".join(runs), text=True, check=True)
        for words in (line.split() for run in runs for line in run.splitlines()):
            if words[0] == "make":
                assert words[-1] in targets
            for word in words:
                if word.startswith(("benchmarks/", "experiments/", ".ci/")):
                    assert (ROOT / word).exists()
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert {*re.findall(r"(?:`|    )make ([a-z-]+)", guide)} <= {*targets}


def test_imports_load_nothing_heavy_beside_torch():
    """Compared with torch alone, which may bring what it likes; spgnn itself loads no torch."""
    names = "CSR, DistGraph, DistMatrix, Halo, Trainer, connect, distribute, infer, product, save"
    torch, nothing, everything = (
        set(
            printed(
                [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"], ROOT
            ).split()
        )
        for program in ("import torch", "import spgnn", f"from spgnn import {names}")
    )
    assert "torch" not in nothing
    assert not (everything - torch) & NOT_IMPORTED


def test_compiled_modules_do_not_link_with_torch():
    """So a wheel fits any torch, and torch can be upgraded without it."""
    modules = list(PACKAGE.rglob("*.so")) or list((ROOT / "build").rglob("*.so"))
    assert modules
    for module in modules:
        linked = module.read_bytes()
        for library in (b"libtorch", b"libc10", b"libpython"):
            assert library not in linked, (module, library)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The source archive, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder]
    printed([*command, "-C", "cmake.define.SPGNN_SETS=all", ROOT], folder)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """An environment with the wheel and, from this one, everything but spgnn; elsewhere."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    site = next((folder / "env").glob("lib/python*/site-packages"))
    # A path that a .pth file adds is not searched for .pth files: not for that of our checkout.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, dist[1]], check=True)
    return python, folder


@pytest.mark.slow
def test_archives_hold_what_they_should(dist):
    with tarfile.open(dist[0]) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CITATION.cff", "Makefile", "spgnn/py.typed"} <= sources
    assert not [name for name in sources if name.startswith(".") or name.endswith((".so", ".pyc"))]
    with zipfile.ZipFile(dist[1]) as archive:
        shipped = set(archive.namelist())
    python = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.py")}
    stubs = {str(file.relative_to(ROOT)) for file in PACKAGE.rglob("*.pyi")}
    assert python | stubs | {"spgnn/py.typed"} <= shipped
    assert {f"spgnn/addons/cuda/src/{name}.cuh" for name in ("rows", "spmm", "types")} <= shipped
    assert {name.split("/")[0] for name in shipped} == {
        "spgnn",
        f"spgnn-{spgnn.__version__}.dist-info",
    }
    unwanted = re.compile(r"csrc|CMakeLists|\.[ch]pp$|__pycache__|/tests?/")
    assert not [name for name in shipped if unwanted.search(name)]


@pytest.mark.slow
def test_the_wheel_keeps_to_the_stable_abi(dist):
    assert re.search(r"-cp311-abi3-linux_\w+\.whl$", dist[1].name)
    command = [sys.executable, "-m", "abi3audit", "--strict", "--report", dist[1]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (module,) = json.loads(done.stdout)["specs"][str(dist[1])]["wheel"]
    assert module["name"] == "_native.abi3.so"
    assert module["result"]["is_abi3"]
    assert module["result"]["computed"] <= "3.11"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_later_pythons_load_the_module(dist, tmp_path, version):
    """Alone, for no torch of theirs is at hand: names get numbers."""
    others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    python = shutil.which(f"python{version}") or (str(others[-1]) if others else None)
    if python is None:
        pytest.skip(f"needs Python {version}")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    pip += ["--only-binary", ":all:", "--python-version", version]
    done = subprocess.run(
        [*pip, dist[1], "nanobind-backend"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs nanobind-backend for Python {version}: {done.stderr[-200:]}")
    program = "from spgnn import _native; print(_native.__file__, len(_native.NameTable()))"
    assert printed([python, "-c", program], site, PYTHONPATH=str(site)).split() == [
        str(site / "spgnn" / "_native.abi3.so"),
        "0",
    ]


@pytest.mark.slow
def test_the_wheel_loads_on_an_old_processor(installed):
    """What only newer ones have is neither run nor needed."""
    emulator = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if emulator is None or platform.machine() != "x86_64":
        pytest.skip("needs qemu-x86_64 (Debian's qemu-user), on x86-64")
    program = "from spgnn import _native; print(_native.instruction_sets())"
    command = [emulator, "-cpu", "Nehalem", installed[0], "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=installed[1])
    assert done.stdout.strip() == "['baseline']"


@pytest.mark.slow
def test_an_installed_wheel_trains(installed):
    python, folder = installed
    program = folder / "train.py"
    program.write_text(
        textwrap.dedent("""\
        import sys
        import spgnn
        from spgnn.train.run import main

        assert "site-packages" in spgnn.__file__, spgnn.__file__
        sys.exit(main(sys.argv[1:]))
        """)
    )
    arguments = ["--nproc", "2", "--dataset", "sbm", "--epochs", "5", "--json", "report.json"]
    subprocess.run([python, program, *arguments], cwd=folder, check=True)
    assert '"total_bytes"' in (folder / "report.json").read_text()
    for command in ("spgnn", "spgnn-partition"):
        subprocess.run([python.with_name(command), "--help"], cwd=folder, check=True)


@pytest.mark.slow
def test_types_are_seen_in_a_foreign_project(installed):
    python, folder = installed
    program = folder / "foreign.py"
    program.write_text("from spgnn import RowLayout\n\nlayout: int = RowLayout.even(10, 2)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'expression has type "RowLayout", variable has type "int"' in done.stdout
    assert "Found 1 error" in done.stdout
