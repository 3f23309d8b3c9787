"""Initial weights of a training from another run (--init_from).

initialize_from(model, "runs/rope", checkpoint, tokenizer)
"""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import pe_spec
from errors import InputError
from model import GPT, GPTConfig
from setting import settings_of
from text_data.tokenizer import same_tokenizer
from training.checkpoints import load_weights

MAY_DIFFER = ("size", "pe", "block_size")  # the shape is compared
POSENC = "posenc."  # names of encodings' weights


def initialize_from(model: GPT, run: str | Path, checkpoint: dict, tokenizer: str) -> None:
    """Load the weights of another run, for other data, length or encoding.

    checkpoint: that run's content; tokenizer: of the new run's data. Parameters that both encodings
    have are kept (`kept_names`); added parts start at zero if they can. Prints which parameters are
    new. Raises InputError if network or tokenizer differ, or if a table belongs to another training
    length.
    """
    old, new, weights = checkpoint["gpt"], model.config, checkpoint["model"]
    length = old["block_size"]
    problems = [
        f"{run} has {name} {old[name]}, not {getattr(new, name)}: use the same value"
        for name in settings_of(GPTConfig, resume="fixed")
        if name not in MAY_DIFFER and old[name] != getattr(new, name)
    ]
    old_tokenizer, data = checkpoint["data"]["tokenizer"], checkpoint["config"].get("data")
    if not same_tokenizer(old_tokenizer, tokenizer):
        remedy = f"use other data, such as {data}" if data else "use other data"
        difference = f"was trained on {old_tokenizer} tokens, not {tokenizer}"
        problems.append(f"{run} {difference}: {remedy}")
    state, places = model.state_dict(), _locate(model.state_dict(), new.pe)
    kept = {} if problems else kept_names(weights, old["pe"], model)
    parts = "+".join(pe_spec.layer_specs(new.pe)).split("+")
    for part in dict.fromkeys(parts) if new.block_size != length else ():
        ((cls, options),) = pe_spec.parse(part)
        if "length" in inspect.signature(cls).parameters and "length" not in options:
            what = f"{part} scales from the training length, which is {length} in {run}"
            problems.append(f"{what}: add length={length} to its options in --pe")
    misfits = [name for name in kept if weights[kept[name]].shape != state[name].shape]
    if misfits:
        parts = " and ".join(dict.fromkeys(places[name][1] for name in misfits))
        what = f"the tables of {parts} in {run} are made for block_size {length}"
        remedy = f"use --block_size {length}, or an encoding without a length limit"
        problems.append(f"{what}, not {new.block_size}: {remedy}")
    if problems:
        raise InputError(*(f"--init_from: {problem}" for problem in problems))
    other_parts = _start_added_parts_at_zero(model, old["pe"])
    merged = {name: value for name, value in weights.items() if not name.startswith(POSENC)}
    merged |= {x: weights[kept[x]] if x in kept else state[x] for x in places}
    load_weights(model, merged, run)
    if old["pe"] != new.pe:
        added = [place for name, place in places.items() if name not in kept]
        labels = dict.fromkeys(f"{x.partition(':')[0]}.{rest}" for _, x, rest in added)
        print(f"{run} has pe {old['pe']}, this run has pe {new.pe}")
        print(f"new encoding parameters: {', '.join(labels) or 'none'}")
        if other_parts:
            others = ", ".join(other_parts)
            print(f"note: with {others} the first logits differ from those of {run}")


def _start_added_parts_at_zero(model: GPT, old_pe: str) -> list[str]:
    """Let what is added to the old encoding start at zero; return parts that cannot."""
    others = {}
    for layer, encoding in enumerate(model.posenc):
        new_parts = _parts(model.config.pe, layer)
        old_parts = [part for part in _parts(old_pe, layer) if part != "nope"]
        if not all(any(_are_related(old, new) for new in new_parts) for old in old_parts):
            continue  # a part is replaced
        for name, (module, *_) in zip(new_parts, encoding.split((), ()), strict=True):
            if not any(_are_related(old, name) for old in old_parts):
                found = [getattr(part, "start_at_zero_", None) for part in module.modules()]
                for start in filter(None, found):
                    start()
                if not any(found):
                    others[name] = None
    return [*others]


def kept_names(weights: dict, old_pe: str, model: GPT) -> dict[str, str]:
    """Return {name in the model: name in weights} of the parameters to keep.

    weights: state_dict of a model with the encoding `old_pe`, whose plugin need not be loaded. Kept
    is what both have, in parts of the same or a related class (`rope`, `yarn`), under the same name
    and with the same shape; if the parts are equal, also tables of another length.
    """
    kept, unused, state = {}, _locate(weights, old_pe), model.state_dict()
    for name, (layer, part, rest) in _locate(state, model.config.pe).items():
        for old_name, (old_layer, old_part, old_rest) in unused.items():
            is_there = (old_layer, old_rest) == (layer, rest)
            fits = old_part == part or weights[old_name].shape == state[name].shape
            if is_there and fits and _are_related(old_part, part):
                kept[name] = old_name
                del unused[old_name]
                break
    return kept


def _are_related(old_part: str, new_part: str) -> bool:
    """Return whether one part's class is a base class of the other's."""
    try:
        old, new = (next(iter(pe_spec.parse(x)))[0] for x in (old_part, new_part))
    except InputError:  # a plugin is not loaded
        return False
    return issubclass(old, new) or issubclass(new, old)


def _locate(names: Iterable[str], pe: str) -> dict[str, tuple[int, str, str]]:
    """Return {name: (LAYER, part, REST)} of names posenc.LAYER[.parts.N].REST."""
    places = {}
    for name in names:
        if match := re.fullmatch(r"posenc\.(\d+)\.(?:parts\.(\d+)\.)?(.+)", name):
            layer, number, rest = int(match[1]), match[2], match[3]
            parts = _parts(pe, layer)
            if number and len(parts) == 1:  # of an encoding with `parts` of its own
                number, rest = None, f"parts.{number}.{rest}"
            places[name] = layer, parts[int(number or 0)], rest
    return places


def _parts(pe: str, layer: int) -> list[str]:
    """Return the --pe strings of the parts of one layer's encoding."""
    pattern = pe_spec.layer_specs(pe)
    return pattern[layer % len(pattern)].split("+")
