"""Attention of rows that come block by block: the same as of all at once, forward and backward."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.addons.outofcore.attention_panel import (
    AttentionPanel,
    PanelLoops,
    PanelRows,
    panel_bytes,
)
from spgnn.errors import InputError
from spgnn.kernels.attention import AttentionDropout, attention, attention_v2
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

ROWS, SOURCES = 60, 70
# The last row's; it is longer than what is stored of a row, and than a batch of rows.
HUB = 20_000


def graph(hub: int, rng: np.random.Generator) -> tuple[sp.csr_array, PanelLoops]:
    """Rows of sources; which get one more, and which source that is."""
    A = sp.random_array((ROWS, SOURCES), density=0.1, rng=rng, format="csr")
    there = torch.from_numpy(rng.random(ROWS) < 0.5)
    there[:2] = torch.tensor([True, False])
    columns = torch.from_numpy(rng.integers(0, SOURCES, ROWS))
    if hub:  # sources that repeat are sources as others are
        indptr = np.concatenate((A.indptr, [A.nnz + hub]))
        indices = np.concatenate((A.indices, rng.integers(0, SOURCES, hub)))
        there, columns = torch.cat((there, there[:1])), torch.cat((columns, columns[:1]))
        A = sp.csr_array((np.ones(len(indices)), indices, indptr), (ROWS + 1, SOURCES))
    return A, PanelLoops(there, columns)


def pattern_of(A: sp.csr_array, loops: PanelLoops | None = None) -> Pattern:
    """The nonzeros, and those of loops at the end of their rows."""
    rows = [A.indices[a:b] for a, b in pairwise(A.indptr)]
    if loops is not None:
        more = zip(loops.there.tolist(), loops.columns.tolist(), strict=True)
        rows = [np.append(row, [c] * one) for row, (one, c) in zip(rows, more, strict=True)]
    indptr = torch.tensor([0, *map(len, rows)]).cumsum(0)
    indices = np.concatenate([A.indices[:0], *rows]).astype(np.int32)
    return CSR.of(indptr, torch.from_numpy(indices), A.shape).pattern


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(
    ("heads", "channels", "p", "hub", "threads"),
    [(1, 1, 0.0, 0, 1), (3, 5, 0.4, 0, 2), (8, 8, 0.3, HUB, 2), (17, 3, 0.0, 1500, 1)],
)
def test_it_is_that_of_all_rows(joint, heads, channels, p, hub, threads):
    rng = np.random.default_rng(heads)
    A, (there, columns) = graph(hub, rng)
    rows, width = A.shape[0], heads * channels

    def draws(*shape):
        return torch.from_numpy(rng.normal(size=shape)).requires_grad_()

    Z, a, G = draws(SOURCES, width), draws(heads, channels), draws(rows, width).detach()
    ends = draws(rows, width if joint else heads)
    ids = [torch.from_numpy(rng.integers(0, 10**6, n)) for n in (rows, SOURCES)]
    dropout, whole = AttentionDropout(7, p, *ids), pattern_of(A, PanelLoops(there, columns))
    if joint:
        expected = attention_v2(whole, ends, Z, a, slope=0.3, dropout=dropout)
    else:
        s = (Z.view(SOURCES, heads, channels) * a).sum(2)
        expected = attention(whole, ends, s, Z, slope=0.3, dropout=dropout)
    expected.backward(G)

    stride = panel_bytes(heads, channels, torch.float64, joint=joint)
    packed, sums = torch.zeros(2, SOURCES, stride, dtype=torch.uint8)
    panel = AttentionPanel(packed, a.detach(), 0.3, joint)
    for part in (slice(33), slice(33, None)):
        panel.put(part.start or 0, Z.detach()[part])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for first, last in ((0, 20), (20, 20), (20, rows)):
            here = slice(first, last)
            loops, drops = PanelLoops(there[here], columns[here]), (7, p, ids[0][here], ids[1])
            own = PanelRows(
                pattern_of(A[here]), ends.detach()[here], loops, AttentionDropout(*drops)
            )
            torch.testing.assert_close(panel.attend(own), expected[here].detach())
            of_ends, da = panel.scatter(own, G[here], sums)
            torch.testing.assert_close(of_ends, ends.grad[here])
            a.grad -= da
    finally:
        torch.set_num_threads(before)
    for part in () if joint else ((0, 30), (30, SOURCES)):
        a.grad -= panel.vector_gradient(sums, *part)
    torch.testing.assert_close(a.grad, torch.zeros_like(a), atol=1e-9, rtol=0)
    dZ = torch.cat([panel.returned(sums, *part) for part in ((0, 1), (1, SOURCES))])
    torch.testing.assert_close(dZ, Z.grad)


def test_bits_do_not_depend_on_threads():
    rng = np.random.default_rng(1)
    A, loops = graph(HUB, rng)
    Z, G = (torch.from_numpy(rng.normal(size=(n, 8))).float() for n in (SOURCES, A.shape[0]))
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for joint in (False, True):
            stride = panel_bytes(2, 4, torch.float32, joint=joint)
            packed, sums = torch.zeros(2, SOURCES, stride, dtype=torch.uint8)
            panel = AttentionPanel(packed, Z[:2, :4].clone(), 0.2, joint)
            panel.put(0, Z)
            own = PanelRows(pattern_of(A), G if joint else G[:, :2].clone(), loops)
            results.append((*panel.scatter(own, G, sums), sums))
    torch.set_num_threads(before)
    for one, other in zip(results, results[2:], strict=False):
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_what_is_refused():
    memory = torch.zeros(3, 64, dtype=torch.uint8)
    with pytest.raises(InputError, match="float32 or float64"):
        AttentionPanel(memory, torch.zeros(1, 2, dtype=torch.bfloat16), 0.2, False)
