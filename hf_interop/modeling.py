"""What is our network to Hugging Face's transformers? A model it loads and generates with; export_hf.py puts this file into a folder.

    model = AutoModelForCausalLM.from_pretrained("exported", trust_remote_code=True)
    logits = model(tokens).logits       # (B, T) int64 -> (B, T, V)
    model.generate(tokens)              # through the KV cache of transformers

and of an encoder

    model = AutoModel.from_pretrained("exported", trust_remote_code=True)
    model(tokens).last_hidden_state     # (B, T, C); AutoModelForMaskedLM gives logits

Written for transformers 5. Legend: as in model.py.
"""

import contextlib
import dataclasses
import math

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, MaskedLMOutput

import posenc
from model import GPT, GPTConfig


class PosencConfig(PreTrainedConfig):
    """The fields of GPTConfig, in config.json; beside them max_position_embeddings, where the encoding has a longest context, and the
    recipe and the step of the run that was exported."""

    model_type = "posenc-gpt"
    attribute_map = {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
    }
    tie_word_embeddings = True


class PosencPreTrained(PreTrainedModel):
    """GPT, with what transformers asks of a model. Weights of encodings and norms stay float32 when those of
    matrix products are loaded as bfloat16."""

    config_class = PosencConfig
    _keep_in_fp32_modules_strict = ["posenc", "ln_1", "ln_2", "ln_f"]

    def __init__(self, config: PosencConfig):
        super().__init__(config)
        self.model = GPT(
            GPTConfig(**{f.name: getattr(config, f.name) for f in dataclasses.fields(GPTConfig)})
        )
        first = {}  # parameter -> its first name; an encoding of scope "model" is one and the same in all layers
        self._tied_weights_keys = {
            name: first[parameter]
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if first.setdefault(parameter, name) != name
        }
        self.post_init()

    def _init_weights(self, module):
        """Weights start as GPT starts them. But transformers builds a model without memory before it loads one: an encoding's
        buffers, which lie in no file, are made again here.
        """
        c = self.config
        fresh = posenc.build(c.pe, c.n_head, c.n_embd, c.block_size, c.n_layer, c.causal)
        for ours, new in zip(self.model.posenc.modules(), fresh.modules()):
            if ours is module:
                for name, buffer in new.named_buffers(recurse=False):
                    getattr(ours, name).copy_(buffer)

    def get_input_embeddings(self):
        return self.model.wte

    def autocast(self, device: torch.device):
        dtype = self.model.wte.weight.dtype
        return (
            contextlib.nullcontext()
            if dtype == torch.float32
            else torch.autocast(device.type, dtype)
        )


class PosencModel(PosencPreTrained):
    """An encoder, for what is made of its last layer."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_dict: bool = True
    ):
        """What the last LayerNorm gives, (B, T, C) float32.

        attention_mask: (B, T), 0 for padding, on either side; the rows of a padded batch are what each gives alone. Raises ValueError
        for padding between tokens.
        """
        output = BaseModelOutput(last_hidden_state=self.encode(input_ids, attention_mask))
        return output if return_dict else output.to_tuple()

    def encode(self, input_ids, attention_mask):
        if not input_ids.size(
            1
        ):  # empty texts alone, whose mean then is 0; padded beside others, it is, too
            return self.model.wte(input_ids).float()
        lengths, back = None, None
        if attention_mask is not None and not bool(attention_mask.all()):
            input_ids, back = to_the_right(input_ids, attention_mask)
            lengths = attention_mask.long().sum(1)
        with self.autocast(input_ids.device):
            hidden = self.model.hidden(input_ids, lengths=lengths).float()
        return hidden if back is None else hidden.gather(1, back[..., None].expand_as(hidden))


class PosencForMaskedLM(PosencModel):
    """An encoder, for the tokens that stand where <|mask|> does."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool = True,
    ):
        """Logits (B, T, V) float32. attention_mask: as of PosencModel. labels: as input_ids, -100 where there is no loss."""
        with self.autocast(input_ids.device):
            logits = (self.encode(input_ids, attention_mask) @ self.model.wte.weight.T).float()
        loss = (
            None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        )
        output = MaskedLMOutput(loss=loss, logits=logits)
        return output if return_dict else output.to_tuple()


class PosencForCausalLM(PosencPreTrained, GenerationMixin):
    """A decoder, which continues texts."""

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
        """Logits (B, T, V) float32, of the last `logits_to_keep` tokens only where that is not 0.

        attention_mask: (B, T), 0 for padding, on either side; the rows of a padded batch are what each gives alone. labels: as
        input_ids, -100 where there is no loss. Raises ValueError for padding between tokens, and for a padded batch with a cache.
        """
        moved = attention_mask is not None and not bool(attention_mask.all())
        if moved:
            if past_key_values is not None:
                raise ValueError(
                    "a padded batch cannot be read piece by piece: leave past_key_values out"
                )
            use_cache = False
            input_ids, back = to_the_right(input_ids, attention_mask)  # where no token sees it
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past = None if past_key_values is None else Past(past_key_values, self.config.n_layer)
        with (
            self.autocast(input_ids.device),
            torch.set_grad_enabled(torch.is_grad_enabled() and past is None),
        ):
            hidden = self.model.hidden(input_ids, past)
            if moved:
                hidden = hidden.gather(1, back[..., None].expand_as(hidden))
            logits = (hidden[:, -logits_to_keep:] @ self.model.wte.weight.T).float()
        loss = (
            None if labels is None else self.loss_function(logits, labels, self.config.vocab_size)
        )
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
        return output if return_dict else output.to_tuple()

    def prepare_inputs_for_generation(
        self,
        input_ids,
        past_key_values=None,
        attention_mask=None,
        use_cache=None,
        logits_to_keep=0,
        **_,
    ):
        """What forward needs for the next token: the tokens that the cache has not seen; all of them for a padded batch."""
        padded = attention_mask is not None and not bool(attention_mask.all())
        if padded or past_key_values is None:
            return {
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "use_cache": False,
                "logits_to_keep": logits_to_keep,
            }
        return {
            "input_ids": input_ids[:, past_key_values.get_seq_length() :],
            "past_key_values": past_key_values,
            "use_cache": True,
            "logits_to_keep": logits_to_keep,
        }


def to_the_right(input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens (B, T) with padding at the left moved to the right, and where each place's result then is, (B, T)."""
    shift, steps = (
        attention_mask.long().argmax(-1, keepdim=True),
        torch.arange(input_ids.size(1), device=input_ids.device),
    )
    there, back = (steps + shift) % len(steps), (steps - shift) % len(steps)  # (B, T)
    if (attention_mask.long().gather(1, there).diff() > 0).any():
        raise ValueError("attention_mask has padding between tokens: pad at one side")
    return input_ids.gather(1, there), back


class Past:
    """A cache of transformers in the role of cache.Cache: it grows as it is filled."""

    capacity, position = math.inf, None

    def __init__(self, cache, layers: int):
        self.layers, self.length = (
            [PastLayer(cache, layer) for layer in range(layers)],
            cache.get_seq_length(),
        )


class PastLayer:
    """One layer of it in the role of cache.LayerCache. What the encoding keeps of each token lies beside its key, as further columns,
    so that beams, crops and whatever else transformers does to a cache take it along.
    """

    position = window = None

    def __init__(self, cache, layer: int):
        self.cache, self.layer = cache, layer

    def extend(self, k: Tensor, v: Tensor, *k_features: Tensor) -> list[Tensor]:
        columns = [state.expand(k.shape[:3])[..., None] for state in k_features]
        keys, values = self.cache.update(
            torch.cat([k, *columns], -1), v, self.layer
        )  # all float32 where there are states
        features = keys[..., k.size(-1) :].unbind(-1)
        features = (
            full[: state.size(0), : state.size(1)] for full, state in zip(features, k_features)
        )
        return [keys[..., : k.size(-1)].to(k.dtype), values.to(v.dtype), *features]

    def last(self) -> tuple[Tensor, ...] | None:
        if not self.cache.get_seq_length(self.layer):
            return None
        held = self.cache.layers[self.layer]
        return held.keys[:, :, -1:, held.values.size(-1) :].unbind(-1)
