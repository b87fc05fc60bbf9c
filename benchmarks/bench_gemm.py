"""Dense products of many rows with a matrix of few: those of spgnn and torch's, in turns.

    python benchmarks/bench_gemm.py [--rows N] [--widths 128x64 …] [--threads N] [--rounds N]

X Wᵀ, its gradient in X, which is one with Wᵀ, and Gᵀ X, its gradient in W. GFlop/s of the fastest
of all rounds. Where spgnn takes torch's product (`kernels.gemm.most_columns`) both
columns are that.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from spgnn.kernels.gemm import times_transposed, transposed_times

WIDTHS = ["128x16", "64x64", "128x64", "128x128", "256x256", "500x64"]
Products = dict[str, Callable[[], Tensor]]


def products(X: Tensor, W: Tensor, G: Tensor) -> dict[str, Products]:
    """The three products, torch's and ours."""
    return {
        "torch": {"X Wᵀ": lambda: X @ W.T, "G W": lambda: G @ W, "Gᵀ X": lambda: G.T @ X},
        "spgnn": {
            "X Wᵀ": lambda: times_transposed(X, W),
            "G W": lambda: times_transposed(G, W.T),
            "Gᵀ X": lambda: transposed_times(G, X),
        },
    }


def fastest(contestants: dict[str, Products], rounds: int) -> dict[tuple[str, str], float]:
    """Seconds of each product of each contestant, the least of all rounds."""
    least: dict[tuple[str, str], float] = {}
    for _ in range(rounds + 1):
        for who, made in contestants.items():
            for what, multiply in made.items():
                begin = perf_counter()
                multiply()
                taken = perf_counter() - begin
                least[who, what] = min(taken, least.get((who, what), taken))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=34493)
    parser.add_argument("--widths", nargs="+", default=WIDTHS, metavar="F_INxF_OUT")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = ("X Wᵀ", "G W", "Gᵀ X")
    print("| f_in, f_out | " + " | ".join(f"torch {n} | spgnn {n}" for n in names) + " |")
    print("|---|" + "---:|---:|" * len(names))
    for width in options.widths:
        f_in, f_out = map(int, width.split("x"))
        X, W = torch.randn(options.rows, f_in), torch.randn(f_out, f_in)
        least = fastest(products(X, W, torch.randn(options.rows, f_out)), options.rounds)
        work = 2e-9 * options.rows * f_in * f_out
        cells = [f"{work / least[w, n]:.0f}" for n in names for w in ("torch", "spgnn")]
        print(f"| {f_in}, {f_out} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\n{options.rows} rows, {options.threads} threads, {options.rounds} rounds, GFlop/s; "
        f"torch {torch.__version__}, Python {platform.python_version()}."
    )


if __name__ == "__main__":
    main()
