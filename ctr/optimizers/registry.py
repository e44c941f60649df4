"""The optimizers by name, created from chosen settings or from JSON."""

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
    """The optimizer `chosen["name"]` with the settings in `chosen`.

    Settings that are not chosen come from `former`, the optimizer of a model to continue, or else are the
    defaults. Raises ModelError for an unknown name or setting, an invalid value, or another optimizer than
    `former`.
    """
    settings = dict(chosen)
    name = settings.pop("name", DEFAULT_OPTIMIZER if former is None else former.name)
    kind = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ModelError(f"there is no optimizer {name!r}: choose from {', '.join(OPTIMIZERS)}.")
    names = [field.name for field in fields(kind)]
    for setting, value in settings.items():
        if setting not in names:
            raise ModelError(
                f"the optimizer {name} has no setting {setting}: leave it out; it has {', '.join(names)}."
            )
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{setting} is {value!r}: give a number.")
    if type(former) is kind:
        return replace(former, **settings)
    if former is None or not kind.online:  # a batch optimizer only needs the weights
        return kind(**settings)
    raise ModelError(
        f"the model to continue was trained with the optimizer {former.name}, not {name}, which cannot use"
        " its state; leave the optimizer out, or train from the beginning."
    )


def optimizer_from_json(entry: Mapping[str, Any]) -> Optimizer:
    """The optimizer whose `to_json` is `entry`. Raises ModelError if `entry` is not that of an optimizer."""
    optimizer = choose_optimizer(entry)
    if missing := optimizer.to_json().keys() - entry.keys():
        raise ModelError(f"the optimizer's {', '.join(sorted(missing))} is missing.")
    return optimizer
