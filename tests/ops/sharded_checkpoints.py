"""Checkpoints of sharded optimizers, as cases: saved on some ranks, resumed on others, by ours and by torch's."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from tests.ops.sharded_cases import ADAM, HERE, Transformer, prepare, sharded_model, whole

__all__ = ["prepare"]

TORCHS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": ADAM,
    "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "adagrad": {"lr": 0.05, "lr_decay": 0.1},
}


def sides(model: Any, rule: str) -> dict[str, Any]:
    """An optimizer of ours and one of torch's."""
    return {
        "ours": lambda: HERE[rule](model.parameters(), **OPTIONS[rule]),
        "torchs": lambda: TORCHS[rule](model.parameters(), **OPTIONS[rule]),
    }


def train(model: Any, optimizer: Any, first: int, steps: int) -> None:
    """Every rank has the same batches, so the number of ranks makes no difference."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        tokens = torch.randint(11, (3, 7), generator=torch.Generator().manual_seed(step)).to(HERE["device"])
        torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()


def everything(model: Any) -> list[Any]:
    """All parameters, whole."""
    return [whole(param).detach().cpu() for param in model.parameters()]


def saves(rules: Iterable[str] = ("adamw",)) -> None:
    """Five steps, a checkpoint, and what five more steps lead to."""
    for rule in rules:
        for side in ("ours", "torchs"):
            model = sharded_model()
            optimizer = sides(model, rule)[side]()
            train(model, optimizer, 0, 5)
            name = f"{rule}-{side}-{dist.get_world_size()}"
            model_state, optimizer_state = get_state_dict(model, optimizer)
            dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=HERE["folder"] / name)
            train(model, optimizer, 5, 5)
            torch.save(everything(model), HERE["folder"] / f"{name}.pt")


def resumed(ranks: int, make: Any, rules: Iterable[str]) -> Iterator[str]:
    """Each optimizer loads each checkpoint of its rule from this number of ranks, and continues."""
    for rule in rules:
        for saved_by in ("ours", "torchs"):
            for side in ("ours", "torchs"):
                if saved_by == side == "torchs":
                    continue
                model = make()
                with torch.no_grad():
                    for param in model.parameters():
                        param.zero_()
                optimizer = sides(model, rule)[side]()
                name = f"{rule}-{saved_by}-{ranks}"
                model_state, optimizer_state = get_state_dict(model, optimizer)
                state = {"model": model_state, "optim": optimizer_state}
                dcp.load(state, checkpoint_id=HERE["folder"] / name)
                set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
                train(model, optimizer, 5, 5)
                for found, expected in zip(everything(model), torch.load(HERE["folder"] / f"{name}.pt"), strict=True):
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=f"{name} by {side}")
                yield name


def resumes_from_one_rank(rules: Sequence[str] = ("adamw",)) -> None:
    """In an FSDP2 model."""
    assert len(list(resumed(1, sharded_model, rules))) == 3 * len(rules)


def resumes_from_two_ranks() -> None:
    """In an FSDP2 model, every rule."""
    assert len(list(resumed(2, sharded_model, list(TORCHS)))) == 9


def resumes_from_two_ranks_without_shards(rules: Sequence[str] = ("adamw",)) -> None:
    """In a model of one process, that knows no DTensor."""
    assert len(list(resumed(2, lambda: Transformer().to(HERE["device"]), rules))) == 3 * len(rules)


saves_by_every_rule = functools.partial(saves, list(TORCHS))
resumes_every_rule_from_one_rank = functools.partial(resumes_from_one_rank, list(TORCHS))
resumes_every_rule_from_two_ranks_without_shards = functools.partial(
    resumes_from_two_ranks_without_shards, list(TORCHS)
)


def passes_on_a_full_state() -> None:
    """The state dict of all shards, from ours to each."""
    model = sharded_model()
    optimizer = HERE["adamw"](model.parameters(), **ADAM)
    train(model, optimizer, 0, 5)
    full = StateDictOptions(full_state_dict=True)
    model_state, optimizer_state = copy.deepcopy(get_state_dict(model, optimizer, options=full))
    train(model, optimizer, 5, 5)
    for side in ("ours", "torchs"):
        other = sharded_model()
        another = sides(other, "adamw")[side]()
        set_state_dict(other, another, model_state_dict=model_state, optim_state_dict=optimizer_state, options=full)
        train(other, another, 5, 5)
        for found, expected in zip(everything(other), everything(model), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=side)
