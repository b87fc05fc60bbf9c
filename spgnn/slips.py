"""Guesses of what unknown words of a command line were meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

from spgnn.errors import InputError, shortened

_SHOWN = 40
_SIZE = re.compile(r"[\d.,]*([kmgt]?i?b?)", re.IGNORECASE)  # a number, a unit, or both
# What other tools call an option, by the name that it has here.
_OTHER_NAMES = {
    "ranks": "nproc np n num-ranks world-size nproc-per-node processes ntasks gpus num-gpus",
    "nproc": "ranks np n num-ranks world-size nproc-per-node processes ntasks gpus num-gpus",
    "parts": "num-parts n-parts nparts partitions k",
    "dataset": "data graph input file",
    "graph": "data dataset input file",
    "data-dir": "root data-root",
    "epochs": "num-epochs n-epochs max-epochs",
    "lr": "learning-rate",
    "hidden": "hidden-dim hidden-channels hidden-size hidden-units num-hidden n-hidden dim",
    "dim": "hidden hidden-dim hidden-channels embedding-dim",
    "layers": "num-layers n-layers depth",
    "heads": "num-heads n-heads",
    "batch-size": "bs batch",
    "num-neighbors": "fanout fanouts fan-out neighbors",
    "workers": "num-workers",
    "threads": "num-threads n-threads cores",
    "device": "gpu cuda use-gpu use-cuda no-cuda",
    "dtype": "precision fp16 bf16 amp half",
    "optimizer": "optim opt",
    "act": "activation",
    "aggregate": "aggr aggregator",
    "patience": "early-stopping",
    "checkpoint": "save save-dir checkpoint-dir ckpt",
    "algo": "algorithm scheme",
    "c": "replication replicas",
    "partition": "method partitioner",
    "method": "partitioner partition algorithm",
    "objective": "receive",
    "balance": "weights vertex-weights",
    "output": "out o",
}


def unknown_option(
    word: str, flags: Mapping[str, str], programs: Callable[[], Iterator[tuple[str, set[str]]]]
) -> InputError:
    """The error for a flag that a command does not know."""
    name = word.partition("=")[0]
    bare = name.strip("-").lower().replace("_", "-")
    message = f"Unknown option: {shortened(name, _SHOWN)}"
    others = [own for own, words in _OTHER_NAMES.items() if bare in words.split()]
    meant = next((own for own in (bare, *others) if own in flags), None)
    if meant is not None:
        return InputError(f"{message}; did you mean '{flags[meant]}'?")
    near = get_close_matches(bare, flags, n=1, cutoff=0.75)
    begin = [own for own in flags if own.startswith(bare)] if len(bare) > 2 else []
    near = near or (begin if len(begin) == 1 else [])
    if "parts" not in flags and not get_close_matches(bare, near, cutoff=0.9):
        for program, its_flags in programs():
            theirs = next((own for own in (bare, *others) if own in its_flags), None)
            if theirs is not None:
                what = "it" if theirs == bare else f"--{theirs}"
                return InputError(f"{message}; {what} is a flag of {program}")
    return InputError(f"{message}. Did you mean {flags[near[0]]}?" if near else f"{message}.")


def left_over(
    word: str, before: Sequence[str], flags: Mapping[str, str], switches: Collection[str]
) -> InputError:
    """The error for a word that is no flag and no value of one."""
    message, last = f"'{shortened(word, _SHOWN)}' is no flag", before[-1] if before else ""
    switch = last.replace("--no-", "--", 1)
    name, equals, value = word.partition("=")
    bare = name.lstrip("-\u2010\u2011\u2012\u2013\u2014\u2212").lower().replace("_", "-")
    if switch in switches and word.lower() in ("true", "false", "yes", "no", "on", "off", "0", "1"):
        return InputError(
            f"{last} takes no value, got '{word}': write {switch} or --no-{switch[2:]}"
        )
    if bare in flags and (equals or not word[0].isalnum()):
        return InputError(
            f"{message}; did you mean '{flags[bare]}{f' {value}' if equals else ''}'?"
        )
    follows = len(before) > 1 and before[-2].startswith("--") and not last.startswith("-")
    named = any(one.startswith("--dataset") for one in before)
    if "dataset" in flags and not named and not (follows and _SIZE.fullmatch(word)):
        return InputError(f"{message}; did you mean '--dataset {shortened(word, _SHOWN)}'?")
    if follows:
        return InputError(f"{message}, and {before[-2]} takes one word")
    return InputError(f"{message}, and no further argument is expected")
