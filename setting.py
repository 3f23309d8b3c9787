"""Settings: fields of a dataclass with a default, limits and rules.

    lr: float = setting(6e-4, 0, resume="override", record="always")

    settings_of(Config, resume="override")  # {"lr": its field}

Every setting is a flag and a key of --config (runtime/cli.py), with the string under the field as
its help. A field with init=False is none.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

LARGEST = 1e18  # fits in int64


def setting(
    default: Any,
    low: float = -LARGEST,
    high: float = LARGEST,
    resume: Literal["fixed", "override", "free"] = "fixed",
    record: Literal["never", "run", "changed", "always", None] = None,
    preset: str | None = None,
    positional: bool = False,
    load: Callable[[list[str]], Any] | None = None,
) -> Any:
    """Return a field of a dataclass of settings.

    low, high: limits of a number. The highest is far above what makes sense, but fails in seconds.
    resume: whether a resumed run may have another value: not, with --override, or freely, because
    it does not define what is learned. record: "run": in config.yaml and checkpoints; "changed":
    also in records, except the default; "always": also the default; None: "run" or, unless it is
    free, "changed". preset: the setting that gives a new value to this one.
    positional: whether words without a flag are its values. load: the flag takes files and may be
    repeated; this function of their paths returns the value.
    """
    metadata = {
        "low": low,
        "high": high,
        "resume": resume,
        "record": record or ("run" if resume == "free" else "changed"),
        "preset": preset,
        "positional": positional,
        "load": load,
    }
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


PLAIN = setting(None).metadata  # of fields without `setting`


def settings_of(cls: type, **rules: str | bool) -> dict[str, dataclasses.Field]:
    """Return the settings of a class that have all these rules, by name."""
    settings = {field.name: field for field in dataclasses.fields(cls) if field.init}
    return {
        name: field
        for name, field in settings.items()
        if rules.items() <= (PLAIN | field.metadata).items()
    }
