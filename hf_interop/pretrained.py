"""How do the weights of others become those of our network?

    settings, weights = pretrained.read("gpt2")                                     # from the hub, or a folder of transformers
    settings, weights = pretrained.read("axiomlaborg/Cable", "NAME.pt")             # or the path of such a file

settings: fields of GPTConfig; weights: what model.GPT's load_state_dict takes.
"""

import os
import pickle

import torch

from errors import InputError

CABLE = "axiomlaborg/Cable"  # on the hub: weights that the authors of CABLE trained
GPT2 = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
}  # of those that we can be


def read(name: str, file: str | None = None) -> tuple[dict, dict]:
    """Settings and weights of a GPT-2 of transformers, or of a checkpoint by the CABLE authors' code: see GPT.from_pretrained.

    Raises InputError where there is no such model, or it is another, or the library that reads it is missing.
    """
    if of_cable(name, file):
        return _cable_v1(name if os.path.isfile(name) else _fetched(name, file))
    return _gpt2(name)


def of_cable(name: str, file: str | None) -> bool:
    """Whether these name a checkpoint by the CABLE authors' code, not a GPT-2."""
    return name == CABLE or file is not None or os.path.isfile(name)


def _gpt2(name: str) -> tuple[dict, dict]:
    """Settings and weights of a GPT-2 of transformers."""
    try:
        from safetensors import SafetensorError
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        raise InputError(
            "GPT-2's weights are read by transformers: pip install transformers"
        ) from None
    try:
        c = GPT2Config.from_pretrained(name)
        problems = [
            f"'{name}' has {key} {getattr(c, key)}, our network {' or '.join(map(str, values))}: name another model"
            for key, values in GPT2.items()
            if getattr(c, key) not in values
        ]
        theirs, found = (
            (None, {})
            if problems
            else GPT2LMHeadModel.from_pretrained(name, output_loading_info=True)
        )
    except (OSError, RuntimeError, SafetensorError, TypeError, ValueError) as error:
        raise InputError(
            f"no GPT-2 model at '{name}' ({' '.join(str(error).split())[:120]}): name a folder with config.json and "
            "model.safetensors, or gpt2, gpt2-medium, gpt2-large or gpt2-xl with a network at hand"
        ) from None
    if missing := sorted(found.get("missing_keys", ())):  # which transformers makes up
        problems.append(
            f"the weights of '{name}' are not all there ({', '.join(missing)[:120]}): save them again, or name another model"
        )
    if problems:
        raise InputError(*problems)
    conv1d = (
        "c_attn.weight",
        "c_proj.weight",
        "c_fc.weight",
    )  # which holds its matrix the other way round
    weights = {
        key: weight.T if key.endswith(conv1d) else weight
        for key, weight in theirs.transformer.state_dict().items()
    }
    table = weights.pop("wpe.weight")
    settings = {
        "pe": "learnable",
        "vocab_size": c.vocab_size,
        "block_size": c.n_positions,
        "n_layer": c.n_layer,
        "n_head": c.n_head,
        "n_embd": c.n_embd,
    }
    return settings, weights | {f"posenc.{layer}.table.weight": table for layer in range(c.n_layer)}


def _cable_v1(path: str) -> tuple[dict, dict]:
    """Settings and weights of a checkpoint by the CABLE authors' code: their h_attn is our gate, -Softplus(z) being log sigmoid(-z)."""
    try:
        theirs = torch.load(path, map_location="cpu", weights_only=True)
        theirs = {
            key.replace("_orig_mod.", "").removeprefix("transformer."): weight
            for key, weight in theirs.get("model", theirs).items()
        }
        (vocabulary, width), heads = theirs["wte.weight"].shape, len(theirs["h.0.attn.h_attn.bias"])
    except (AttributeError, KeyError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(
            f"{path} is no checkpoint by the CABLE authors' code ({' '.join(str(error).split())[:120]}): name one that "
            "holds transformer.wte.weight and transformer.h.0.attn.h_attn.bias"
        ) from None
    weights = {}
    for key, weight in theirs.items():
        if ".h_attn." in key:
            weights[f"posenc.{key.split('.')[1]}.gate.{key.rpartition('.')[2]}"] = -weight.float()
        elif key != "lm_head.weight" and not key.endswith(
            ".attn.mask"
        ):  # wte.weight again, and a constant
            weights[key] = weight.float()
    return {
        "pe": "cable-v1",
        "vocab_size": vocabulary,
        "n_layer": sum(key.endswith("h_attn.bias") for key in theirs),
        "n_head": heads,
        "n_embd": width,
    }, weights


def _fetched(repository: str, file: str | None) -> str:
    """The path of a file of weights from the hub; of its only one, where none is named."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError

    try:
        there = [
            name
            for name in huggingface_hub.list_repo_files(repository)
            if name.endswith((".pt", ".pth", ".bin"))
        ]
        if file not in there and not (file is None and len(there) == 1):
            raise InputError(
                f"{repository} holds {', '.join(there) or 'no weights'}: name one of them as file"
            )
        return huggingface_hub.hf_hub_download(repository, file or there[0])
    except (ConnectionError, HFValidationError, HTTPError, LocalEntryNotFoundError) as error:
        raise InputError(
            f"{repository} cannot be fetched ({' '.join(str(error).split())[:120]}): connect, or name a file"
        ) from None
