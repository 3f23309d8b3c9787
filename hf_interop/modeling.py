"""The network as models of Hugging Face transformers.

    model = AutoModelForCausalLM.from_pretrained("exported", trust_remote_code=True)
    logits = model(tokens).logits       # (B, T) int64 -> (B, T, V)
    model.generate(tokens)              # with transformers' KV cache

and for an encoder

    model = AutoModel.from_pretrained("exported", trust_remote_code=True)
    model(tokens).last_hidden_state     # (B, T, C); AutoModelForMaskedLM returns logits

export_hf.py copies this file into the exported folder. Written for transformers 5.

Importing this module makes PyTorch round denormal numbers to 0 on the CPU, as the repository's
programs do: steep biases give denormal attention weights, which are up to four times as slow.

Legend: B batch, T tokens, C width, H heads, D head dimension, V vocabulary.
"""

import dataclasses
import hashlib
from contextlib import nullcontext
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput
from transformers.utils.hub import cached_file

import pe_spec
from kv_cache import Cache, LayerCache
from model import GPT, GPTConfig

# Arguments of from_pretrained that say where the files are.
LOCATION = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
)

# NumPy before 2.4 looks for denormals at the first call, and warns if they are rounded.
np.finfo(np.float32)
np.finfo(np.float64)
# Threads that start later inherit this setting, so it is set before the first computation.
torch.set_flush_denormal(True)


class PosencConfig(PreTrainedConfig):
    """The fields of GPTConfig, stored in config.json.

    export_hf.py adds max_position_embeddings for limited encodings, plugin (file name -> SHA-256)
    and training (settings, text, step). Saving a model adds weights_sha256 (as plugin).
    """

    model_type = "posenc-gpt"
    attribute_map = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    tie_word_embeddings = True


class PosencPreTrained(PreTrainedModel):
    """GPT wrapped as a transformers model.

    Parameters of encodings and norms stay float32 when a model is loaded as bfloat16. safetensors
    has no checksum, so config.json has the SHA-256 of the weights, which loading checks.
    """

    config_class = PosencConfig
    _keep_in_fp32_modules_strict = ["posenc", "ln_1", "ln_2", "ln_f"]

    def __init__(self, config: PosencConfig):
        super().__init__(config)
        names = [field.name for field in dataclasses.fields(GPTConfig)]
        self.model = GPT(GPTConfig(**{name: getattr(config, name) for name in names}))
        # An encoding of scope "model" is one instance in all layers: its parameters are tied.
        first_name = {}
        self._tied_weights_keys = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if first_name.setdefault(parameter, name) != name:
                self._tied_weights_keys[name] = first_name[parameter]
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Return a model as transformers does. Raise OSError if the weights are corrupt."""
        if pretrained_model_name_or_path is not None:
            check_weights(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory, is_main_process: bool = True, *args, **kwargs):
        """Save a model as transformers does, then add the SHA-256 of the weights to config.json.

        With push_to_hub, transformers uploads the files before that, without it.
        """
        self.config.weights_sha256 = None  # that of the loaded files
        try:
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        only_adapters = getattr(self, "_hf_peft_config_loaded", False)
        if is_main_process and not only_adapters:
            files = sorted(Path(save_directory).glob("model*.safetensors*"))
            self.config.weights_sha256 = {path.name: hash_file(path) for path in files}
            self.config.save_pretrained(save_directory)

    def _init_weights(self, module):
        """Compute an encoding's buffers again: no file has them, and they were on meta."""
        c = self.model.config
        fresh = pe_spec.build(c.encodings, c.n_head, c.n_embd, c.block_size, c.n_layer, c.causal)
        for own, new in zip(self.model.posenc.modules(), fresh.modules(), strict=True):
            if own is module:
                for name, buffer in new.named_buffers(recurse=False):
                    getattr(own, name).copy_(buffer)

    def get_input_embeddings(self):
        return self.model.wte

    def autocast(self, device: torch.device):
        """Return autocast to the dtype of the embedding, or a null context for float32."""
        dtype = self.model.wte.weight.dtype
        return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)

    def lm_loss(self, logits: Tensor, labels: Tensor | None) -> Tensor | None:
        """Return transformers' loss of logits (B, T, V), or None without labels."""
        size = self.config.vocab_size
        return None if labels is None else self.loss_function(logits, labels, size)


class PosencModel(PosencPreTrained):
    """Encoder that returns the hidden states of its last layer."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_dict: bool = True
    ):
        """Return the output of the last LayerNorm, (B, T, C) float32.

        attention_mask: (B, T), 0 at padding, on one side, which changes no row's result. Raises
        ValueError for padding between tokens.
        """
        output = BaseModelOutput(last_hidden_state=self.encode(input_ids, attention_mask))
        return output if return_dict else output.to_tuple()

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the hidden states (B, T, C) float32."""
        if input_ids.size(1) == 0:  # empty texts: their mean over tokens is 0
            return self.model.wte(input_ids).float()
        if not is_padded(attention_mask):
            with self.autocast(input_ids.device):
                return self.model.hidden(input_ids).float()
        input_ids, original_index = pad_right(input_ids, attention_mask)
        lengths = attention_mask.long().sum(1)
        with self.autocast(input_ids.device):
            hidden = self.model.hidden(input_ids, lengths=lengths).float()
        return hidden.gather(1, original_index[..., None].expand_as(hidden))


class PosencForMaskedLM(PosencModel):
    """Encoder that predicts the tokens at <|mask|>."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool = True,
    ):
        """Return logits (B, T, V) float32 and, with labels, the loss.

        attention_mask: see PosencModel. labels: as input_ids, -100 at tokens without a loss.
        """
        with self.autocast(input_ids.device):
            hidden = self.encode(input_ids, attention_mask)
            logits = (hidden @ self.model.wte.weight.T).float()
        output = MaskedLMOutput(loss=self.lm_loss(logits, labels), logits=logits)
        return output if return_dict else output.to_tuple()


class PosencForCausalLM(PosencPreTrained, GenerationMixin):
    """Decoder that predicts the next token."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values=None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        return_dict: bool = True,
    ):
        """Return logits (B, T, V) float32 and, with labels, the loss.

        attention_mask: see PosencModel. labels: as input_ids, -100 at tokens without a loss.
        logits_to_keep: return the logits of that many last tokens; 0: of all. Raises ValueError for
        padding between tokens, and for a padded batch with a cache.
        """
        padded = is_padded(attention_mask)
        if padded:
            if past_key_values is not None:
                raise ValueError("a padded batch cannot use a cache: leave out past_key_values")
            use_cache = False
            # With padding on the right, no token of a decoder attends to it.
            input_ids, original_index = pad_right(input_ids, attention_mask)
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        cache = None
        if past_key_values is not None:
            cache = CacheAdapter(past_key_values, self.model)
        needs_grad = torch.is_grad_enabled() and cache is None
        with self.autocast(input_ids.device), torch.set_grad_enabled(needs_grad):
            hidden = self.model.hidden(input_ids, cache)
            if padded:
                hidden = hidden.gather(1, original_index[..., None].expand_as(hidden))
            logits = (hidden[:, -logits_to_keep:] @ self.model.wte.weight.T).float()
        output = CausalLMOutputWithPast(
            loss=self.lm_loss(logits, labels), logits=logits, past_key_values=past_key_values
        )
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(
        self, input_ids, past_key_values=None, attention_mask=None, logits_to_keep=0, **_
    ):
        """Return the inputs of `forward` for the next token.

        With a cache: the tokens that it does not hold yet. A padded batch is read from the start.
        """
        inputs = {"input_ids": input_ids, "logits_to_keep": logits_to_keep}
        if past_key_values is None or is_padded(attention_mask):
            return inputs | {"attention_mask": attention_mask, "use_cache": False}
        inputs["input_ids"] = input_ids[:, past_key_values.get_seq_length() :]
        return inputs | {"past_key_values": past_key_values, "use_cache": True}


def check_weights(name_or_path: str | Path, arguments: dict) -> None:
    """Raise OSError if a file of weights has another SHA-256 than its config.json says.

    arguments: of from_pretrained. Models that transformers' push_to_hub has uploaded have none.
    """
    location = {name: arguments[name] for name in LOCATION if name in arguments}
    try:
        config, _ = PosencConfig.get_config_dict(name_or_path, **location)
    except OSError:
        return  # transformers reports a missing config.json
    hashes = config.get("weights_sha256") or {}
    if not isinstance(hashes, dict) or any(Path(name).name != name for name in hashes):
        raise OSError(f"{name_or_path}: weights_sha256 in config.json is corrupt: export it again")
    for name, sha256 in hashes.items():
        try:
            path = cached_file(name_or_path, name, **location)
        except OSError:
            continue  # transformers reports a missing file, unless it loads another one
        if path is not None and hash_file(path) != sha256:
            raise OSError(
                f"{path} is corrupt: its SHA-256 is not that in config.json: "
                "export or download it again"
            )


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_padded(attention_mask: Tensor | None) -> TypeGuard[Tensor]:
    """Return whether an attention mask (B, T) marks any padding."""
    return attention_mask is not None and not bool(attention_mask.all())


def pad_right(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move padding on the left to the right; return the tokens and the index (B, T) to undo it.

    Raises ValueError for padding between tokens.
    """
    length = input_ids.size(1)
    steps = torch.arange(length, device=input_ids.device)
    left_padding = attention_mask.long().argmax(-1, keepdim=True)  # (B, 1)
    moved_index = (steps + left_padding) % length  # (B, T)
    original_index = (steps - left_padding) % length  # (B, T)
    if (attention_mask.long().gather(1, moved_index).diff() > 0).any():
        raise ValueError("attention_mask has padding between tokens: pad on one side")
    return input_ids.gather(1, moved_index), original_index


class CacheAdapter(Cache):
    """A transformers cache as a kv_cache.Cache. It grows as it is filled."""

    def __init__(self, cache, model: GPT):
        super().__init__(model)
        self.layers = [LayerCacheAdapter(cache, layer) for layer in range(len(self.layers))]


class LayerCacheAdapter(LayerCache):
    """One layer of a transformers cache as a kv_cache.LayerCache.

    The encoding's per-token features are additional columns of the keys, so that everything that
    transformers does to a cache (beam search, cropping) applies to them too.
    """

    def __init__(self, cache, layer: int):
        super().__init__(capacity=None, window=None)
        self.cache = cache
        self.layer = layer
        self.length = cache.get_seq_length()  # before this call of the model

    def store(self, new: list[Tensor]) -> list[Tensor]:
        k, v, *features = new
        columns = [feature.expand(*k.shape[:3], 1) for feature in features]
        # Features are float32, so with features the stored keys are float32 too.
        keys, values = self.cache.update(torch.cat([k, *columns], -1), v, self.layer)
        keys, *stored = keys.tensor_split([*range(k.size(-1), keys.size(-1))], -1)
        pairs = zip(stored, features, strict=True)
        features = [column[: x.size(0), : x.size(1)] for column, x in pairs]
        return [keys.to(k.dtype), values.to(v.dtype), *features]

    def last(self) -> tuple[Tensor, ...] | None:
        """Return the features of the latest token, or None if the cache is empty."""
        if not self.cache.get_seq_length(self.layer):
            return None
        stored = self.cache.layers[self.layer]
        return stored.keys[:, :, -1:, stored.values.size(-1) :].unbind(-1)
