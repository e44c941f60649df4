"""The optimizers by name, and the way from what was chosen or written down to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from ctr.errors import ModelError
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from ctr.optimizers.lbfgs import Lbfgs
from ctr.optimizers.optimizer import Optimizer

OPTIMIZERS: dict[str, type[Optimizer]] = {each.name: each for each in (Ftrl, AdaGrad, Lbfgs)}
DEFAULT_OPTIMIZER = Ftrl.name


def choose_optimizer(chosen: Mapping[str, Any], former: Optimizer | None = None) -> Optimizer:
    """The optimizer `chosen["name"]` with the other settings in `chosen`.

    What was not chosen is as in `former`, the optimizer of a model to train on from, or else the default.
    Raises ModelError for a name or a setting that does not exist, for a value that it cannot have, and for
    another optimizer than `former`.
    """
    settings = dict(chosen)
    name = settings.pop("name", DEFAULT_OPTIMIZER if former is None else former.name)
    kind = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ModelError(f"there is no optimizer {name!r}: choose from {', '.join(OPTIMIZERS)}.")
    known = [field.name for field in fields(kind)]
    for setting, value in settings.items():
        if setting not in known:
            raise ModelError(
                f"the optimizer {name} has no setting {setting}: leave it out; it has {', '.join(known)}."
            )
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{setting} is {value!r}: give a number.")
    if former is None:
        return kind(**settings)
    if not kind.online and type(former) is not kind:
        return kind(**settings)  # it takes nothing but weights
    if type(former) is not kind:
        raise ModelError(
            f"the model to train on from was trained with the optimizer {former.name}, not {name}: its state "
            "is of no use to another; leave the optimizer out, or train from the beginning."
        )
    return replace(former, **settings)


def optimizer_from_json(entry: Mapping[str, Any]) -> Optimizer:
    """The optimizer whose `to_json` gave `entry`. Raises ModelError if none did, also where settings lack."""
    found = choose_optimizer(entry)
    if missing := found.to_json().keys() - entry.keys():
        raise ModelError(f"the optimizer's {', '.join(sorted(missing))} is missing.")
    return found
