"""Initial weights of a training from another run (--init_from).

initialize_from(model, "runs/rope", checkpoint, tokenizer)
"""

import operator
from pathlib import Path

from runtime.loading import load_weights

import pe_spec
from errors import InputError
from model import GPT
from training.settings import SHAPE


def initialize_from(model: GPT, run: str | Path, checkpoint: dict, tokenizer: str) -> None:
    """Load the weights of another run, to train on other data, at another length or encoding.

    checkpoint: that run's content; tokenizer: of the new run's data. The network must be the same.
    Parameters that both encodings have are kept, see `kept_names`; new ones keep their initial
    values. Prints what was kept, initialized and dropped if the encodings differ. Raises InputError
    if the network or the tokenizer differs, or if a table belongs to another training length.
    """
    old, new = checkpoint["gpt"], model.config
    problems = []
    for name in (*SHAPE[1:], "vocab_size", "attn_scale"):
        old_value, new_value = old[name], getattr(new, name)
        if old_value != new_value:
            problems.append(f"{run} has {name} {old_value}, not {new_value}: use the same value")
    if old["causal"] != new.causal:
        kind, objective = ("a decoder", "clm") if old["causal"] else ("an encoder", "mlm")
        problems.append(f"{run} is {kind}: use --objective {objective}")
    old_tokenizer = checkpoint["data"]["tokenizer"]
    if old_tokenizer != tokenizer:
        data = checkpoint["config"].get("data")  # None for imported weights
        remedy = f"use other data, such as {data}" if data else "use other data"
        problems.append(f"{run} was trained on {old_tokenizer} tokens, not {tokenizer}: {remedy}")
    if not problems:
        weights = checkpoint["model"]
        kept, misfits = kept_names(weights, old["pe"], model)
        if misfits:
            problems.append(
                f"the tables of {' and '.join(misfits)} in {run} are made for block_size "
                f"{old['block_size']}, not {new.block_size}: use --block_size {old['block_size']}, "
                "or an encoding without a length limit"
            )
    if problems:
        raise InputError(*(f"--init_from: {problem}" for problem in problems))
    state = model.state_dict()
    merged = {name: value for name, value in weights.items() if not _is_encoding(name)}
    for name in filter(_is_encoding, state):
        merged[name] = weights[kept[name]] if name in kept else state[name]
    load_weights(model, merged, run)
    if old["pe"] == new.pe:
        return
    print(f"{run} has pe {old['pe']}, this run has pe {new.pe}")
    initialized = [name for name in state if name not in kept]
    dropped = [name for name in weights if name not in kept.values()]
    for verb, labels in (
        (f"kept from {run}", _labels(kept, new.pe)),
        ("initialized", _labels(initialized, new.pe)),
        (f"of {run} dropped", _labels(dropped, old["pe"])),
    ):
        if labels:
            print(f"encoding parameters {verb}: {', '.join(labels)}")


def kept_names(weights: dict, old_pe: str, model: GPT) -> tuple[dict[str, str], list[str]]:
    """Return which encoding parameters of a model another run's weights provide.

    weights: state_dict of a model with the encoding `old_pe`, whose plugin need not be loaded. A
    parameter is kept if both have it: in a part of the same or a related class (as `rope` and
    `yarn`), under the same name and with the same shape. Returns {name in the model: name in
    weights}, and the parts that are the same but have tables of another length.
    """
    new_pe, state = model.config.pe, model.state_dict()
    old_names: dict[tuple, str] = {
        _locate(name, old_pe): name for name in filter(_is_encoding, weights)
    }
    kept, misfits = {}, {}
    for name in filter(_is_encoding, state):
        layer, part, rest = _locate(name, new_pe)
        old_parts, new_parts = _parts(old_pe, layer), _parts(new_pe, layer)
        source = _pair_parts(old_parts, new_parts).get(part)
        old_name = old_names.get((layer, source, rest))
        if source is None or old_name is None:
            continue
        if weights[old_name].shape == state[name].shape:
            kept[name] = old_name
        elif _parse_part(old_parts[source]) == _parse_part(new_parts[part]):
            misfits[new_parts[part]] = None
    return kept, list(misfits)


def _parts(pe: str, layer: int) -> list[str]:
    """Return the --pe strings of the parts of one layer's encoding."""
    pattern = pe_spec.layer_specs(pe)
    return pattern[layer % len(pattern)].split("+")


def _pair_parts(old_parts: list[str], new_parts: list[str]) -> dict[int, int]:
    """Return for each new part that has one the index of the old part to take weights from."""
    sources = {}
    for is_match in (operator.is_, _is_related):  # the same class is the better match
        for n, new in enumerate(map(_parse_part, new_parts)):
            for o, old in enumerate(map(_parse_part, old_parts)):
                is_free = n not in sources and o not in sources.values()
                if is_free and old and new and is_match(old[0], new[0]):
                    sources[n] = o
    return sources


def _is_related(old: type, new: type) -> bool:
    return issubclass(old, new) or issubclass(new, old)


def _parse_part(part: str) -> tuple[type, dict] | None:
    """Return class and options of one part of an encoding; None if its plugin is not loaded."""
    try:
        return next(iter(pe_spec.parse(part)))
    except InputError:
        return None


def _is_encoding(name: str) -> bool:
    return name.startswith("posenc.")


def _locate(name: str, pe: str) -> tuple[int, int, str]:
    """Return LAYER, PART, REST of the name posenc.LAYER.REST or posenc.LAYER.parts.PART.REST."""
    _, layer, rest = name.split(".", 2)
    if len(_parts(pe, int(layer))) == 1:
        return int(layer), 0, rest
    _, part, rest = rest.split(".", 2)
    return int(layer), int(part), rest


def _labels(names, pe: str) -> list[str]:
    """Return "cable.step.weight" for each encoding parameter, once for all layers."""
    labels = {}
    for layer, part, rest in (_locate(name, pe) for name in filter(_is_encoding, names)):
        labels[f"{_parts(pe, layer)[part].partition(':')[0]}.{rest}"] = None
    return list(labels)
