"""Comparability of runs, which differ in encoding and seed, and in the settings of --may_differ.

may_differ = read_may_differ("lr,block_size", records)
warning, sentence = describe_differences(columns, may_differ)
"""

from collections.abc import Collection

from runtime import cli

from errors import InputError
from reporting.columns import Column, describe_settings, differing_settings, training_of
from reporting.formatting import escape_markdown


def read_may_differ(text: str, records: Collection[dict]) -> tuple[str, ...]:
    """Return the settings of --may_differ. Raises InputError for one that no record has."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        return ()
    from runtime.checkpoints import MAY_CHANGE_ON_RESUME  # which imports torch

    recorded = {name for each in records if each.get("settings") for name in training_of(each)}
    known = recorded | MAY_CHANGE_ON_RESUME  # records lack these, which change no result
    if unknown := [name for name in names if recorded and name not in known]:
        raise InputError(*(cli.unknown(f"--may_differ {name}", name, known) for name in unknown))
    return names


def describe_differences(
    columns: list[Column], may_differ: tuple[str, ...], by_model: bool = False
) -> tuple[str, str]:
    """Return a warning about settings that prevent comparisons, and a sentence on the others.

    by_model: runs of different sizes and training lengths are not compared with each other.
    """
    models = {}
    for column in columns:
        first = column.records[0]
        model = (first.get("size"), column.trained_at) if by_model else None
        models.setdefault(model, []).append(first)
    names = sorted({name for group in models.values() for name in differing_settings(group)})
    wrong = [name for name in names if name not in may_differ]
    warning, sentence = "", ""
    if wrong:
        values = escape_markdown(describe_settings(columns, wrong))
        warning = (
            f"**Not comparable**, because the runs differ in more than encoding and seed: {values}."
        )
    if shown := [name for name in names if name in may_differ]:
        sentence = f" Settings that differ: {escape_markdown(describe_settings(columns, shown))}."
    if unknown := [each.label for each in columns if each.records[0].get("settings") is None]:
        sentence += f" Settings are unknown: {escape_markdown(', '.join(unknown))}."
    return warning, sentence
