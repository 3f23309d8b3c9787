"""Other implementations that bench.py compares with.

authors_cable  the CABLE authors' network, github.com/axiomlab/Cable, commit
               8bc6b83, if PYTHONPATH has the folder `src` of a clone
nanogpt        github.com/karpathy/nanoGPT, commit 3adf61e, if NANOGPT names
               the folder of a clone
make_transformers_model  Llama, GPT-NeoX or GPT-2 of transformers
"""

import os
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError
from model import GPT, GPTConfig

NANOGPT = "NANOGPT"  # environment variable: folder of a clone


def make_transformers_model(config: GPTConfig, positions: int) -> Any:
    """Return a decoder of transformers of the same size with random weights.

    positions: the longest text in tokens. The llama block is a Llama, `rope` a GPT-NeoX that
    rotates whole heads, and all others are compared with GPT-2.
    """
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    shape = {  # GPT2Config translates these names to its own
        "vocab_size": config.vocab_size,
        "max_position_embeddings": positions,
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": True,
    }
    kind = "gpt2"
    if config.block == "llama":
        kind = "llama"
        shape |= {
            "intermediate_size": config.n_inner,
            "num_key_value_heads": config.n_kv_head,
        }
    elif config.pe == "rope":
        kind = "gpt_neox"
        rotation = {
            "rope_type": "default",
            "rope_theta": 10_000,
            "partial_rotary_factor": 1.0,
        }
        shape |= {"rope_parameters": rotation, "intermediate_size": 4 * config.n_embd}
        shape |= {"hidden_act": "gelu_new", "use_parallel_residual": False}
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**shape))


class OtherNetwork(nn.Module):
    """A network of other authors with the interface of GPT; loss: as `forward`."""

    def __init__(
        self,
        config: GPTConfig,
        network: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
    ):
        super().__init__()
        self.config, self.network, self.loss = config, network, loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of tokens and targets, (B, T) int64 each."""
        return self.loss(tokens, targets.contiguous())  # networks view their targets

    posenc = ()  # no encoding of ours
    parameter_count, flops_per_token = GPT.parameter_count, GPT.flops_per_token
    parameter_groups = GPT.parameter_groups


def llama(config: GPTConfig) -> OtherNetwork:
    """Return transformers' Llama of the shape of the llama block, without QK-norm."""
    network = make_transformers_model(config, config.block_size)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        logits = network(tokens, use_cache=False).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return OtherNetwork(config, network, loss)


def authors_cable(config: GPTConfig) -> OtherNetwork:
    """Return the CABLE authors' network. Raises InputError if Python does not find it."""
    if find_spec("Cable") is None:
        raise InputError("no module Cable: add github.com/axiomlab/Cable/src to PYTHONPATH")
    from Cable import Cable  # pyright: ignore[reportMissingImports]

    network = Cable(config)
    return OtherNetwork(config, network, lambda *batch: network(*batch)[1])


def nanogpt(config: GPTConfig) -> OtherNetwork:
    """Return nanoGPT's network, with biases and without dropout as ours.

    Raises InputError unless NANOGPT names the folder of a clone.
    """
    folder = os.environ.get(NANOGPT, "")
    file = Path(folder, "model.py")
    spec = spec_from_file_location("nanogpt_model", file)
    if not (folder and file.is_file() and spec and spec.loader):
        raise InputError(
            f"{NANOGPT} is '{folder}', which has no model.py: "
            "use the folder of a clone of github.com/karpathy/nanoGPT"
        )
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    names = ("block_size", "vocab_size", "n_layer", "n_head", "n_embd")
    shape = {name: getattr(config, name) for name in names}
    network = module.GPT(module.GPTConfig(**shape, dropout=0.0, bias=True))
    return OtherNetwork(config, network, lambda *batch: network(*batch)[1])
