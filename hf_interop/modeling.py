"""The network as models of Hugging Face transformers.

    model = AutoModelForCausalLM.from_pretrained("exported", trust_remote_code=True)
    logits = model(tokens).logits       # (B, T) int64 -> (B, T, V)
    model.generate(tokens)              # with transformers' KV cache

An encoder loads with AutoModelForMaskedLM. AutoModel gives the hidden states of either:
model(tokens).last_hidden_state, (B, T, C).

export_hf.py copies this file. Written for transformers 5. Importing it makes PyTorch round denormal
numbers to 0 on the CPU: the attention weights of steep biases would be up to four times as slow.

Legend: B batch, T tokens, C width, H heads, D head dimension, V vocabulary.
"""

import dataclasses
import hashlib
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple
from transformers.utils.hub import cached_file

from attention import at_least_float32
from kv_cache import Cache, LayerCache
from model import GPT, GPTConfig

# Arguments of from_pretrained that say where the files are.
LOCATION = ("cache_dir", "force_download", "local_files_only", "proxies", "revision")
LOCATION += ("subfolder", "token")

# NumPy before 2.4 warns if denormals are rounded at the first call.
np.finfo(np.float32)
np.finfo(np.float64)
# Threads inherit this setting, so it is set before the first computation.
torch.set_flush_denormal(True)


class PosencConfig(PreTrainedConfig):
    """The fields of GPTConfig, stored in config.json.

    export_hf.py adds training, max_position_embeddings of limited encodings and plugin (file name
    -> SHA-256). Saving adds weights_sha256 (as plugin).
    """

    model_type = "posenc-gpt"
    attribute_map = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer"}
    attribute_map |= {"num_attention_heads": "n_head"}
    tie_word_embeddings = True


class PosencPreTrained(PreTrainedModel):
    """GPT wrapped as a transformers model.

    Encodings and norms stay float32 when a model is loaded as bfloat16.
    safetensors has no checksum: loading checks the SHA-256 in config.json.
    """

    config_class = PosencConfig
    supports_gradient_checkpointing = True
    _keep_in_fp32_modules_strict = ["posenc", "ln_1", "ln_2", "ln_f", "q_norm", "k_norm"]

    def __init__(self, config: PosencConfig):
        super().__init__(config)
        names = [field.name for field in dataclasses.fields(GPTConfig)]
        self.model = GPT(GPTConfig(**{name: getattr(config, name) for name in names}))
        # An encoding of scope "model" is one instance in all layers.
        first_name = {}
        self._tied_weights_keys = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if first_name.setdefault(parameter, name) != name:
                self._tied_weights_keys[name] = first_name[parameter]
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, **kwargs):
        """Return a model. Raise OSError if the weights are corrupt."""
        if pretrained_model_name_or_path is not None:
            check_weights(pretrained_model_name_or_path, kwargs)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory, is_main_process: bool = True, *args, **kwargs):
        """Save a model, then add the weights' SHA-256 to config.json.

        With push_to_hub, transformers uploads the files without it.
        """
        self.config.weights_sha256 = None  # that of the loaded files
        try:
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        except SafetensorError as error:  # a full disk
            raise OSError(str(error)) from error
        if is_main_process:
            files = sorted(Path(save_directory).glob("model*.safetensors*"))
            self.config.weights_sha256 = {path.name: hash_file(path) for path in files}
            self.config.save_pretrained(save_directory)

    def _init_weights(self, module):
        """Compute an encoding's buffers again: no file has them."""
        fresh = self.model.config.make_encodings()
        for own, new in zip(self.model.posenc.modules(), fresh.modules(), strict=True):
            if own is module:
                for name, buffer in new.named_buffers(recurse=False):
                    getattr(own, name).copy_(buffer)

    def _apply(self, fn, recurse: bool = True):
        """Apply a conversion, as `.to`; encodings and norms keep float32."""
        names = set(self._keep_in_fp32_modules_strict or ())
        kept = {
            id(x)
            for name, tensor in (*self.named_parameters(), *self.named_buffers())
            if not names.isdisjoint(name.split("."))
            for x in (tensor, tensor.grad)
        }

        def convert(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            if id(tensor) in kept and converted.dtype in (torch.float16, torch.bfloat16):
                return tensor.to(converted.device)
            return converted

        return super()._apply(convert, recurse)

    def _set_gradient_checkpointing(self, enable: bool = True, *_, **__):
        """Do what gradient_checkpointing_enable and _disable ask for."""
        self.model.activation_checkpointing = enable
        self.gradient_checkpointing = enable

    def get_input_embeddings(self):
        return self.model.wte

    def set_input_embeddings(self, value: nn.Embedding):
        """Replace the embedding, as of another vocabulary."""
        self.model.wte = value
        self.model.token_count = self.model.config.vocab_size = value.num_embeddings

    def get_output_embeddings(self) -> nn.Linear | None:
        """Return the output layer, None if it is the embedding."""
        return self.model.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear):
        self.model.lm_head = new_embeddings

    def autocast(self, device: torch.device):
        """Return autocast to the embedding's dtype, a null context for float32."""
        dtype = self.model.wte.weight.dtype
        is_half = dtype in (torch.float16, torch.bfloat16)
        return torch.autocast(device.type, dtype) if is_half else nullcontext()

    def encode(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        past_key_values=None,
        use_cache: bool | None = None,
        inputs_embeds: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Return the output of the last norm, (B, T, C) float32, and more.

        input_ids (B, T) or inputs_embeds (B, T, C). attention_mask:
        (B, T), 0 at padding, on one side, which changes no row's result. position_ids: only the
        model's own.
        output_hidden_states: add the inputs of all blocks and the result, each (B, T, C). Raises
        ValueError for other inputs.
        """
        if output_attentions or self.config.output_attentions:
            raise ValueError(
                "output_attentions is not supported, because fused attention keeps no weights: "
                "leave it out"
            )
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass either input_ids or inputs_embeds")
        x = input_ids if inputs_embeds is None else inputs_embeds
        assert x is not None
        mask = attention_mask if is_padded(attention_mask) else None
        if past_key_values is None and use_cache and mask is None:
            past_key_values = DynamicCache(config=self.config)
        cache = None
        if past_key_values is not None:
            cache = CacheAdapter(past_key_values, self.model)
        if x.size(1) == 0:  # empty texts: their mean over tokens is 0
            empty = x if input_ids is None else self.model.wte(x.long())
            return BaseModelOutputWithPast(at_least_float32(empty), past_key_values)
        if mask is not None and (cache or mask.shape != x.shape[:2]):
            raise ValueError(
                "a padded batch cannot use a cache: pass whole texts and their mask, and no "
                "past_key_values"
            )
        check_positions(position_ids, mask, cache.length if cache else 0, x)
        lengths = original_index = None
        if mask is not None:
            x, original_index = pad_right(x, mask)
            # No token of a decoder attends to padding on the right.
            lengths = None if self.model.config.causal else mask.long().sum(1)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        states = self.states(x, cache, lengths, self.model.h if output_hidden_states else ())
        if original_index is not None:
            states = [take(state, original_index) for state in states]
        return BaseModelOutputWithPast(
            last_hidden_state=states[-1],
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
        )

    def states(self, x: Tensor, cache, lengths: Tensor | None, blocks) -> list[Tensor]:
        """Return the inputs of blocks and the last norm's output, (B, T, C) float32."""
        states: list[Tensor] = []
        for_gradients = torch.is_grad_enabled() and cache is None
        with (
            self.autocast(x.device),
            torch.set_grad_enabled(for_gradients),
            ExitStack() as hooks,
        ):
            for block in blocks:
                hook = block.register_forward_pre_hook(lambda _, x: states.append(x[0]))
                hooks.callback(hook.remove)
            states.append(self.model.hidden(x, cache, lengths))
        return [at_least_float32(state) for state in states]


class PosencModel(PosencPreTrained):
    """Decoder or encoder that returns the last hidden states."""

    forward = can_return_tuple(PosencPreTrained.encode)


class PosencWithLogits(PosencPreTrained):
    """Decoder or encoder that predicts tokens."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **inputs,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V) float32 and, with labels, the loss.

        labels: as input_ids, -100 at tokens without a loss.
        logits_to_keep: only of that many last tokens; 0: of all.
        num_items_in_batch: what the sum of the losses is divided by, None for their number, as
        Trainer accumulates gradients. Other arguments: see `encode`.
        """
        encoded = self.encode(input_ids, attention_mask, **inputs)
        hidden = encoded.last_hidden_state
        assert hidden is not None  # transformers' outputs may lack them
        with self.autocast(hidden.device):
            logits = hidden[:, -logits_to_keep:] @ self.model.output_layer.weight.T
        logits = at_least_float32(logits)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits,
                labels,
                self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=encoded.past_key_values,
            hidden_states=encoded.hidden_states,
        )


class PosencForMaskedLM(PosencWithLogits):
    """Encoder that predicts the tokens at <|mask|>."""


class PosencForCausalLM(PosencWithLogits, GenerationMixin):
    """Decoder that predicts the next token."""

    def prepare_inputs_for_generation(
        self,
        input_ids,
        next_sequence_length: int | None = None,
        past_key_values=None,
        attention_mask=None,
        inputs_embeds=None,
        **kwargs,
    ):
        """Return the inputs of `forward`; a padded batch is read from the start."""
        if is_padded(attention_mask):
            next_sequence_length = past_key_values = None
            kwargs["use_cache"] = False
        parent: Any = super()
        return parent.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length,
            past_key_values,
            attention_mask,
            inputs_embeds,  # transformers looks for this argument
            **kwargs,
        )


def check_weights(name_or_path: str | Path, arguments: dict) -> None:
    """Raise OSError if weights have another SHA-256 than config.json says.

    arguments: of from_pretrained. Models that push_to_hub uploaded have none.
    """
    location = {name: arguments[name] for name in LOCATION if name in arguments}
    try:
        config, _ = PosencConfig.get_config_dict(name_or_path, **location)
    except OSError:
        return  # transformers reports a missing config.json
    hashes = config.get("weights_sha256") or {}
    if not isinstance(hashes, dict) or any(Path(name).name != name for name in hashes):
        raise OSError(f"weights_sha256 in {name_or_path}/config.json is corrupt: export again")
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


def pad_right(x: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move left padding to the right; return x and the index (B, T) to undo it.

    x: (B, T) or (B, T, C). Raises ValueError for padding between tokens.
    """
    length = x.size(1)
    steps = torch.arange(length, device=x.device)
    left_padding = attention_mask.long().argmax(-1, keepdim=True)  # (B, 1)
    moved_index = (steps + left_padding) % length  # (B, T)
    original_index = (steps - left_padding) % length  # (B, T)
    if (attention_mask.long().gather(1, moved_index).diff() > 0).any():
        raise ValueError("attention_mask has padding between tokens: pad on one side")
    return take(x, moved_index), original_index


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return x (B, T[, C]) with its tokens in the order of index (B, T)."""
    return x.gather(1, index if x.ndim == 2 else index[..., None].expand_as(x))


def check_positions(
    position_ids: Tensor | None, mask: Tensor | None, start: int, x: Tensor
) -> None:
    """Raise ValueError if position_ids (B, T) are not those of the model.

    mask: attention mask with padding, whose positions do not count.
    start: number of cached tokens.
    """
    if position_ids is None:
        return
    if mask is None:
        mask = torch.ones(x.shape[:2], device=x.device)
    expected = mask.long().cumsum(1) - 1 + start
    is_row = position_ids.size(-1) == x.size(1)
    if not is_row or ((position_ids - expected) * mask).any():
        raise ValueError("position_ids other than 0, 1, 2, … are not supported: leave them out")


class CacheAdapter(Cache):
    """A transformers cache as a kv_cache.Cache.

    Raises ValueError for caches that would round, drop or move what they store.
    """

    def __init__(self, cache, model: GPT):
        super().__init__(model)
        if not model.config.causal:
            raise ValueError("an encoder has no cache: leave out past_key_values and use_cache")
        kinds = {type(layer) for layer in getattr(cache, "layers", ())}
        kinds |= {getattr(cache, "layer_class_to_replicate", None) or DynamicLayer}
        if type(cache) is not DynamicCache or kinds != {DynamicLayer} or cache.offloading:
            raise ValueError(
                f"this {type(cache).__name__} is not supported: use a DynamicCache without sliding "
                "window and offloading"
            )
        count = len(self.layers)
        self.layers = [LayerCacheAdapter(cache, n, count) for n in range(count)]


class LayerCacheAdapter(LayerCache):
    """One layer of a transformers cache as a kv_cache.LayerCache.

    Each key feature is a further layer of the cache, after those of the model, so that what
    transformers does to a cache (beam search, cropping) applies to it, too.
    """

    def __init__(self, cache, layer: int, count: int):
        """Layer number `layer` of `count`."""
        super().__init__(capacity=None, window=None)
        self.cache = cache
        self.layer = layer
        self.count = count
        self.length = cache.get_seq_length(layer)

    def extend(self, k: Tensor, v: Tensor, *k_features: Tensor) -> list[Tensor]:
        last_layer = self.layer + len(k_features) * self.count
        while len(self.cache.layers) <= last_layer:
            self.cache.layers.append(DynamicLayer())
        first, *layers = self.cache.layers[self.layer :: self.count]
        result = list(first.update(k, v))
        for x, layer in zip(k_features, layers, strict=False):
            layer.dim = x.dim()
            columns = x if x.dim() == 4 else x[..., None]
            columns = columns.expand(k.size(0), -1, -1, -1)
            stored, _ = layer.update(columns, columns[..., :0])
            result.append(stored if x.dim() == 4 else stored[..., 0])
        return result

    def last(self) -> tuple[Tensor, ...] | None:
        """Return the latest token's features, None if there is none."""
        if not self.cache.get_seq_length(self.layer):
            return None
        _, *layers = self.cache.layers[self.layer :: self.count]
        latest = [(x.keys[:, :, -1:], x.dim) for x in layers if x.is_initialized]
        return tuple(x if dim == 4 else x[..., 0] for x, dim in latest)
