"""Former arguments of the trainer; they will be removed in the next release."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from fastcaps._renamed import warn_renamed
from fastcaps.training.loggers import CallbackLogger, Logger

F = TypeVar("F", bound=Callable[..., None])


def former_trainer_arguments(init: F) -> F:
    """Accept ``observe``, ``tensorboard`` and ``world`` of the trainer, with a warning."""

    @functools.wraps(init)
    def wrapped(self: Any, *args: Any, **options: Any) -> None:
        loggers: list[Logger | str] = []
        if "observe" in options:
            warn_renamed("Trainer(observe=…)", "loggers=[CallbackLogger(observe)]")
            loggers.append(CallbackLogger(options.pop("observe")))
        if "tensorboard" in options:
            warn_renamed("Trainer(tensorboard=…)", 'loggers=["tensorboard"]')
            loggers += ["tensorboard"] if options.pop("tensorboard") else []
        if "world" in options:
            warn_renamed("Trainer(world=…)", "nothing; the processes that init_distributed joined are used")
            options.pop("world")
        if loggers:
            options["loggers"] = [*options.get("loggers", ()), *loggers]
        init(self, *args, **options)

    return cast(F, wrapped)
