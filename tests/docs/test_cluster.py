"""Files that start a job elsewhere: manifests of Kubernetes, the container file, the batch script.

The schemas say, in our words, what the API servers of Kubeflow (Trainer 2.2, Training Operator 1.9)
and Volcano (1.14) demand of the fields that the manifests use.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.comm.jobs import command, free_port
from tests.docs.pages import ROOT

CLUSTER = ROOT / "experiments" / "cluster"
Schema = dict[str, Any]


def record(required: str = "", **fields: Schema) -> Schema:
    """An object with these fields alone."""
    kind: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
    return {**kind, "required": required.split()} if required else kind


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 1}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
AMOUNTS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["integer", "string"], "pattern": "^[0-9]+(m|[KMGT]i?)?$"},
}
RESOURCES = record(requests=AMOUNTS, limits=AMOUNTS)
POD = record(
    "spec",
    spec=record(
        "containers",
        restartPolicy=one_of("Always", "OnFailure", "Never"),
        containers=array(
            record(
                "name image",
                name=NAME,
                image=TEXT,
                command=array(TEXT),
                resources=RESOURCES,
                volumeMounts=array(record("name mountPath", name=NAME, mountPath=TEXT)),
            )
        ),
        volumes=array(
            record("name", name=NAME, persistentVolumeClaim=record("claimName", claimName=TEXT))
        ),
    ),
)
REPLICAS = record(
    "replicas template",
    replicas=COUNT,
    restartPolicy=one_of("Always", "OnFailure", "Never", "ExitCode"),
    template=POD,
)
POLICIES = array(
    record(
        "event action",
        event=one_of("PodFailed", "PodEvicted", "TaskCompleted", "*"),
        action=one_of("RestartJob", "CompleteJob", "AbortJob", "TerminateJob"),
    )
)
SPECS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): record(
        "runtimeRef",
        runtimeRef=record(
            "name",
            name=TEXT,
            apiGroup=one_of("trainer.kubeflow.org"),
            kind=one_of("ClusterTrainingRuntime", "TrainingRuntime"),
        ),
        trainer=record(
            image=TEXT,
            numNodes=COUNT,
            numProcPerNode=COUNT,
            command=array(TEXT),
            resourcesPerNode=RESOURCES,
        ),
    ),
    ("kubeflow.org/v1", "PyTorchJob"): record(
        "pytorchReplicaSpecs",
        nprocPerNode=TEXT,
        pytorchReplicaSpecs=record("Master Worker", Master=REPLICAS, Worker=REPLICAS),
    ),
    ("batch.volcano.sh/v1alpha1", "Job"): record(
        "tasks",
        schedulerName=one_of("volcano"),
        minAvailable=COUNT,
        maxRetry=COUNT,
        plugins={"type": "object", "additionalProperties": array(TEXT)},
        policies=POLICIES,
        tasks=array(
            record(
                "name replicas template", name=NAME, replicas=COUNT, policies=POLICIES, template=POD
            )
        ),
    ),
}
MANIFESTS = sorted(CLUSTER.glob("*.yaml"))
# What each operator sets in a container of a job of one node.
ENVIRONMENTS = {
    "trainjob": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"},
    "pytorchjob": {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "RANK": "0", "WORLD_SIZE": "1"},
    "volcano": {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"},
}


def objects(value: Any) -> list[dict[str, Any]]:
    """All objects inside one, itself included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    found = [one for part in inner for one in objects(part)]
    return [value, *found] if isinstance(value, dict) else found


def read(path: Path) -> dict[str, Any]:
    manifest = pytest.importorskip("yaml").safe_load(path.read_text())
    assert isinstance(manifest, dict)
    return manifest


def commands(manifest: dict[str, Any]) -> list[list[str]]:
    return [one["command"] for one in objects(manifest) if "command" in one]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifests_are_what_their_servers_take(path):
    jsonschema = pytest.importorskip("jsonschema")
    manifest = read(path)
    kind = manifest["apiVersion"], manifest["kind"]
    schema = record(
        "apiVersion kind metadata spec",
        apiVersion=TEXT,
        kind=TEXT,
        metadata=record("name", name=NAME),
        spec=SPECS[kind],
    )
    jsonschema.validate(manifest, schema)
    # Pods mount volumes that they have, and wait for as many as there are.
    for pod in (one for one in objects(manifest) if "containers" in one):
        mounted = {one["name"] for one in objects(pod["containers"]) if "mountPath" in one}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    pods = [one["replicas"] for one in objects(manifest) if "replicas" in one]
    for job in (one for one in objects(manifest) if "minAvailable" in one):
        assert job["minAvailable"] == sum(pods)
    broken = {**manifest, "spec": {**manifest["spec"], "replicaz": 3}}
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        jsonschema.validate(broken, schema)


@pytest.mark.slow
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_commands_of_manifests_train_and_go_on(path, tmp_path):
    """In the environment that the operator makes; on this machine, and a smaller graph."""
    manifest = read(path)
    shell, option, script = commands(manifest)[0]
    assert all(one == [shell, option, script] for one in commands(manifest))
    epochs = "--dataset sbm --hidden 8 --set training.checkpoint-every=1 --epochs"
    script = script.replace("--nproc-per-node 8", "--nproc-per-node 2")
    environment = {
        **os.environ,
        **ENVIRONMENTS[path.stem],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for number in (2, 3):
        if path.stem == "volcano":
            environment["MASTER_PORT"] = str(free_port())
        here = script.replace("--dataset /data/products-32", f"{epochs} {number}")
        line = f"set -x; {here.replace('/data', str(tmp_path))}"
        done = command(shell, option, line, environment=environment)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "run" / "checkpoint.safetensors").exists()
        assert ("--resume" in done.stderr) == (number == 3)


def instructions() -> list[tuple[str, str]]:
    """The lines of the container file, joined where a backslash says so."""
    text = (ROOT / "Containerfile").read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def copied(stage: int) -> list[str]:
    """What a stage of the container file copies from the repository."""
    stages, found = -1, []
    for word, rest in instructions():
        stages += word == "FROM"
        if word == "COPY" and stages == stage and not rest.startswith("--from"):
            found += rest.split()[:-1]
    return found


def test_the_container_file_installs_what_there_is():
    known = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "CMD"}
    words = [word for word, _ in instructions()]
    assert set(words) <= known
    assert (words.count("FROM"), words[-1]) == (2, "CMD")
    assert all((ROOT / name).exists() for stage in (0, 1) for name in copied(stage))
    runs = [rest for word, rest in instructions() if word == "RUN"]
    for run in runs:
        shlex.split(run)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"\[([\w,]+)\]", " ".join(runs))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.slow
def test_the_container_builds(tmp_path):
    tool = next((tool for tool in ("podman", "buildah", "docker") if shutil.which(tool)), None)
    works = (
        tool and subprocess.run([tool, "info"], check=False, capture_output=True).returncode == 0
    )
    if not works:
        pytest.skip("needs podman, buildah or docker, and a running one")
    build = [tool, "build", "--file", ROOT / "Containerfile", "--tag", "spgnn-test", ROOT]
    subprocess.run(build, check=True)


@pytest.mark.slow
def test_the_container_copies_enough_to_build_the_wheel(tmp_path):
    """Its first stage, without a container: the same files, the same command."""
    for name in copied(0):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    [build] = [rest for word, rest in instructions() if rest.startswith("pip wheel")]
    done = subprocess.run(
        ["bash", "-c", build.replace("pip", f"{sys.executable} -m pip --no-input", 1)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PIP_NO_BUILD_ISOLATION": "0",  # pip takes it for "without isolation"
            "PIP_WHEEL_DIR": str(tmp_path / "wheels"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_page_shows_the_batch_script():
    page = (ROOT / "docs" / "guides" / "cluster.md").read_text()
    for line in (CLUSTER / "train.sbatch").read_text().splitlines():
        assert line.startswith("# ") or line in page
