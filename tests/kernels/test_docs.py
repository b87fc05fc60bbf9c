"""The examples of docs/kernels.md run as they are printed, and do what is said beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from spgnn import kernels

from . import oracle as reference

DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"


def run_example(number: int) -> dict[str, object]:
    """Everything that an example leaves behind."""
    examples = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    torch.manual_seed(0)
    # The default backend starts a compiler, for seconds.
    code = examples[number].replace("fullgraph=True", 'fullgraph=True, backend="aot_eager"')
    scope: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), scope)
    return scope


def test_products():
    scope = run_example(0)
    dense, X, Z = reference.dense(scope["A"]), scope["X"], scope["Z"]
    with torch.no_grad():
        assert torch.allclose(Z, dense.T @ (dense @ X))
        assert torch.allclose(scope["Y"], 2 * (dense @ X))
        assert torch.allclose(X.grad, 2 * dense.T @ (dense @ Z))
    assert scope["A"].T.T is scope["A"]


def test_attention():
    scope = run_example(1)
    A, weights = scope["A"], scope["weights"]
    dense = A.with_values(torch.arange(1.0, 6)).to_scipy().todense()
    here = torch.from_numpy(dense) > 0
    queries, keys, X = (scope[name].detach() for name in ("queries", "keys", "X"))
    scores = torch.einsum("ihf,jhf->hij", queries, keys) / scope["width"] ** 0.5
    expected = scores.masked_fill(~here, -torch.inf).softmax(2)
    assert torch.allclose(weights.T, expected[:, here], atol=1e-6)
    assert torch.allclose(scope["Y"], torch.einsum("hij,jhf->ihf", expected, X), atol=1e-5)
    assert all(scope[name].grad.abs().sum() > 0 for name in ("queries", "keys", "X"))


def test_fused_attention():
    scope = run_example(2)
    here = reference.dense(scope["A"]) > 0
    numbers = scope["d"].double()[:, None] + scope["s"].double()
    scores = torch.nn.functional.leaky_relu(numbers, 0.2).masked_fill(~here[:, :, None], -torch.inf)
    z = scope["Z"].detach().double().view(3, 4, 8)
    right = torch.einsum("ijh,jhf->ihf", scores.softmax(1), z).flatten(1)
    assert torch.allclose(scope["Y"].double(), right, atol=1e-5)
    assert scope["Z"].grad.abs().sum() > 0
    assert torch.equal(scope["largest"][1], scope["Z"][1])


# Torch's own, where it first differentiates in forward mode.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms():
    scope = run_example(3)
    dense, X = reference.dense(scope["A"]).float(), scope["X"]
    assert torch.allclose(scope["many"], dense @ X, atol=1e-6)
    assert torch.allclose(scope["Y"], dense @ X[0], atol=1e-6)
    assert torch.allclose(scope["dY"], dense @ X[1], atol=1e-6)
    assert torch.equal(scope["compiled"](X[0]), kernels.spmm(scope["A"], X[0]).relu())
    in_values = kernels.sddmm(scope["A"], torch.ones(3, 4), X[0])
    assert torch.equal(scope["of_values"], in_values)
    assert torch.allclose(in_values, X[0].sum(1)[scope["A"].indices.long()], atol=1e-6)


def test_rows_in_few_bits():
    scope = run_example(4)
    X, arrived = scope["X"], scope["arrived"]
    assert scope["packed"].shape == (1000, scope["packed_bytes"](64, 4))
    assert torch.allclose(arrived + scope["residual"], X, atol=1e-6)
    right = (arrived - X).double().norm() / X.double().norm()
    assert torch.allclose(scope["relative_error"], right)
    assert 0.05 < float(right) < 0.2
