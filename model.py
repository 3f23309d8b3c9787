"""GPT: a GPT-2 or Llama network whose positional encoding is a setting.

    model = GPT(GPTConfig(size="small", pe="cable", vocab_size=50304, block_size=1024))
    logits = model(tokens)                              # (B, T) int64 -> (B, T, V)
    loss = model(tokens, targets)                       # mean cross-entropy in nats

With causal=False it is an encoder like BERT, trained on masked tokens:

    loss = model(masked_tokens, targets, masked_positions)

`block` is "gpt2", of the papers, or "llama". Sequences may have any length; block_size, the
training length, limits only encodings with a max_context (learnable). Names follow GPT-2's
checkpoints.

Legend: B batch, T tokens, C width, H heads, G key heads, D head dimension, V vocabulary size.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attention
import pe_spec
from attention import PathName
from errors import InputError
from kv_cache import Cache, LayerCache
from losses import MeanCrossEntropy, cross_entropies
from operators.elementary import at_least_float32
from posenc import Encoding
from setting import setting, settings_of

SIZES = {  # n_layer, n_head, n_embd
    "quickstart": (4, 4, 128),
    "tiny": (6, 8, 512),
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}
CUSTOM = "custom"  # the size of a shape that is not in SIZES
FILLED_IN: Any = None  # default of what `size`, or `block` and the shape, determine
BlockName = Literal["gpt2", "llama"]


@dataclass
class GPTConfig:
    """Shape and settings of a network.

    train_gpt.py has a flag for each, except vocab_size and causal. None stands for what the size or
    the block determines:

                                             gpt2     llama
    n_kv_head   G, heads of keys and values  H        H
    head_dim    D                            C / H    C / H
    n_inner     width of the MLP             4 C      8/3 C, rounded up to a multiple of 64
    qk_norm     RMSNorm of queries and keys  no       yes
    qkv_bias    of their projection          yes      no
    """

    size: str = setting("small", record="always")
    """shape of the network: quickstart, tiny, small, medium, large or xl; for recipes: --config"""
    pe: str = setting("cable", record="run")
    """positional encoding (posenc.py): cable; with options: fire:width=16; joined: rope+cable"""
    vocab_size: int = setting(50304, 1)
    """rows of the embedding"""
    block_size: int = setting(1024, 1, 10**8, record="always")
    """training sequence length in tokens"""
    # More layers take a minute to create.
    n_layer: int = setting(FILLED_IN, 1, 256, record="always", preset="size")
    """number of layers; null: that of the size"""
    n_head: int = setting(FILLED_IN, 1, 1_000, record="always", preset="size")
    """number of attention heads; null: that of the size"""
    n_embd: int = setting(FILLED_IN, 1, 100_000, record="always", preset="size")
    """embedding dimension; null: that of the size"""
    attn_scale: float | None = setting(None, record="always")
    """factor of the logits q k^T; null: 1 / sqrt(head dimension)"""
    causal: bool = True
    """decoder; false: encoder"""
    attention: PathName = setting("auto", resume="free")
    """attention path (attention.py); auto: the fastest one, which is checked first on a GPU"""
    block: BlockName = "gpt2"
    """kind of layers; llama: RMSNorm, SwiGLU and QK-norm, no biases. For what follows, null is the
    block's own value (model.GPTConfig)"""
    n_kv_head: int = setting(FILLED_IN, 1, 1_000, preset="size")
    """heads of keys and values; fewer than n_head: grouped-query attention"""
    head_dim: int = setting(FILLED_IN, 1, 10_000, preset="size")
    """columns of a head"""
    n_inner: int = setting(FILLED_IN, 1, 1_000_000, preset="size")
    """width of the MLP's hidden layer"""
    qk_norm: bool = setting(FILLED_IN, preset="block")
    """RMSNorm of queries and keys"""
    qkv_bias: bool = setting(FILLED_IN, preset="block")
    """biases in the projection of queries, keys and values"""
    tied: bool = True
    """use the embedding as the output layer"""
    norm_eps: float = setting(1e-5, 0)
    """added to the variance in norms"""

    def __post_init__(self):
        """Fill in settings; InputError lists all problems."""
        names = ("n_layer", "n_head", "n_embd")
        self._fill(dict(zip(names, SIZES.get(self.size, ()), strict=False)))
        shape = (self.n_layer, self.n_head, self.n_embd)
        if self.size not in (*SIZES, CUSTOM) or None in shape:
            problems = [f"unknown size '{self.size}': use one of {' '.join(SIZES)}"]
        else:
            self.size = {known: size for size, known in SIZES.items()}.get(shape, CUSTOM)
            problems = self._shape_problems()
        if not problems:
            is_llama, C = self.block == "llama", self.n_embd
            self._fill({"n_kv_head": self.n_head, "head_dim": C // self.n_head})
            self._fill({"n_inner": -(-8 * C // 3 // 64) * 64 if is_llama else 4 * C})
            self._fill({"qk_norm": is_llama, "qkv_bias": not is_llama})
        try:
            self.encodings = pe_spec.parse(self.pe, self.causal)  # not a field
        except InputError as error:
            problems += error.problems
        if not problems and self.head_dim * self.n_head != self.n_embd:
            problems += [
                f"{cls.names[0]} needs heads of n_embd / n_head columns, not {self.head_dim}: "
                "use another encoding"
                for cls, _ in self.encodings
                if cls.needs_head_dimension
            ]
        if problems:
            raise InputError(*problems)

    def make_encodings(self) -> pe_spec.ModuleList[Encoding]:
        """Return new encodings of all layers."""
        return pe_spec.build(
            self.encodings,
            self.n_head,
            self.n_embd,
            self.block_size,
            self.n_layer,
            self.causal,
            managed=True,
        )

    def _fill(self, defaults: dict) -> None:
        for name, value in defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _shape_problems(self) -> list[str]:
        """Return one line for each setting that is out of range."""
        problems = []
        for name, field in settings_of(GPTConfig).items():
            value = getattr(self, name)
            low = field.metadata.get("low", value)
            if isinstance(value, int | float) and value < low:
                problems.append(f"{name} is {value}: it must be at least {low}")
        heads, key_heads, scale = self.n_head, self.n_kv_head, self.attn_scale
        if self.block not in (known := get_args(BlockName)):
            problems.append(f"unknown block '{self.block}': use one of {' '.join(known)}")
        if scale is not None and scale <= 0:
            problems.append(f"attn_scale is {scale}: use a number above 0, or null")
        if self.head_dim is None and heads > 0 and self.n_embd % (2 * heads):
            problems.append(
                f"n_embd {self.n_embd} gives each of {heads} heads {self.n_embd / heads:g} "
                f"columns, which must be an even number: use a multiple of {2 * heads}"
            )
        if key_heads and heads > 0 and heads % key_heads:
            problems.append(f"n_kv_head is {key_heads}: it must divide {heads} heads")
        return problems


class RMSNorm(nn.RMSNorm):
    """RMSNorm in float32; the result has the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(at_least_float32(x)).to(x.dtype)


class Attention(nn.Module):
    """Self-attention; layers may share the encoding, an argument."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        D, C = config.head_dim, config.n_embd
        self.heads, self.key_heads, self.head_dim = config.n_head, config.n_kv_head, D
        self.scale = config.attn_scale or 1 / math.sqrt(D)
        columns = (self.heads + 2 * self.key_heads) * D
        self.c_attn = nn.Linear(C, columns, bias=config.qkv_bias)
        self.c_proj = nn.Linear(self.heads * D, C, bias=config.block == "gpt2")
        self.q_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else None
        # The Triton kernels use q, k and v as thirds of the projection.
        self.is_packed = not config.qk_norm and self.heads == self.key_heads

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        encoding: Encoding,
        path: attention.Path,
        cache: LayerCache | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the output (B, T, C) for x (B, T, C) at positions pos (B|1, T)."""
        packed_qkv = self.c_attn(x)  # (B, T, (H + 2 G) D)
        q, k, v = self.split_heads(packed_qkv)
        y = attention.attend(
            encoding,
            x,
            q,
            k,
            v,
            pos,
            path=path,
            cache=cache,
            lengths=lengths,
            scale=self.scale,
            packed_qkv=packed_qkv if self.is_packed else None,
        )
        return self.c_proj(y.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, H D)

    def split_heads(self, packed_qkv: Tensor) -> list[Tensor]:
        """Return q (B, H, T, D), k, v (B, G, T, D) of (B, T, (H + 2 G) D)."""
        heads = packed_qkv.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.key_heads, self.key_heads], 1)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return [q, k, v]


class MLP(nn.Module):
    """GPT-2's MLP: GELU(x W1 + b1) W2 + b2."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, config.n_inner)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class SwiGLU(nn.Module):
    """Llama's MLP: (SiLU(x W_gate) * x W_up) W_down; c_fc: W_gate, W_up."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 2 * config.n_inner, bias=False)
        self.c_proj = nn.Linear(config.n_inner, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.c_fc(x).chunk(2, -1)
        return self.c_proj(F.silu(gate) * up)


def make_norm(config: GPTConfig) -> nn.Module:
    """Return a norm of the block: LayerNorm of gpt2, RMSNorm of llama."""
    kind = nn.LayerNorm if config.block == "gpt2" else RMSNorm
    return kind(config.n_embd, config.norm_eps)


class Block(nn.Module):
    """Pre-norm block of either kind, which differ in norms, MLP and biases."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = make_norm(config)
        self.attn = Attention(config)
        self.ln_2 = make_norm(config)
        self.mlp = MLP(config) if config.block == "gpt2" else SwiGLU(config)

    def forward(self, x: Tensor, *context) -> Tensor:
        """Return the output (B, T, C); arguments of Attention."""
        x = x + self.attn(self.ln_1(x), *context)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Pre-norm blocks without dropout. `posenc` has one encoding per layer.

    activation_checkpointing: backward recomputes the blocks to save memory.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        V, C = config.vocab_size, config.n_embd
        self.wte = nn.Embedding(V, C)
        self.token_count = V  # see set_vocabulary
        self.posenc = config.make_encodings()
        limits = [x.max_context for x in self.posenc if x.max_context is not None]
        # The longest sequence that the encoding supports; None: no limit.
        self.max_context: int | None = min(limits, default=None)
        self.h = pe_spec.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = make_norm(config)
        self.lm_head = None if config.tied else nn.Linear(C, V, bias=False)
        self.choose_paths(torch.device("cpu"))
        self.activation_checkpointing = False
        self.init_weights()

    @torch.no_grad()
    def init_weights(self):
        """Initialize weights as GPT-2 does; encodings have further ones.

        | weights                                          | initialization        |
        | Linear and Embedding, also those of encodings    | N(0, 0.02)            |
        | c_proj, which writes to the residual stream      | N(0, 0.02 / sqrt(2L)) |
        | biases                                           | 0                     |
        | LayerNorm, RMSNorm                               | 1, bias 0             |
        """
        residual = math.sqrt(2 * self.config.n_layer)
        for name, module in self.named_modules():
            divisor = residual if name.endswith("c_proj") else 1
            pe_spec.initialize(module, 0.02 / divisor)

    def choose_paths(
        self, device: torch.device, dtype: torch.dtype = torch.float32, **purpose: bool
    ) -> None:
        """Choose each layer's attention path for a device; see `attention.choose_path`."""
        c = self.config
        self.attention_paths = tuple(
            attention.choose_path(encoding, device, dtype, c.head_dim, name=c.attention, **purpose)
            for encoding in self.posenc
        )

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        masked_positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return `logits` of tokens (B, T), or with targets their `loss`."""
        if targets is None:
            return self.logits(tokens, cache)
        return self.loss(tokens, targets, masked_positions)

    def set_vocabulary(self, tokens: int) -> None:
        """Exclude the vocabulary's padding, except in training, whose matrix products it speeds up.

        tokens: of the tokenizer; encoders have <|mask|>, too.
        """
        self.token_count = tokens if self.config.causal else tokens + 1

    @property
    def output_layer(self) -> nn.Embedding | nn.Linear:
        """The module of the logits' weights (V, C): the embedding, if tied."""
        return self.lm_head or self.wte

    @property
    def output_embeddings(self) -> Tensor:
        """The logits' weights (V, C), without padding of the vocabulary."""
        return self.output_layer.weight[: self.token_count]

    def compile(self, **options):
        """Compile the blocks, which share one graph per kind of layer, and the loss."""
        # DistributedDataParallel's buckets would cut each graph into several.
        torch._dynamo.config.optimize_ddp = False
        for block in self.h:
            block.compile(**options)
        self.mean_loss = torch.compile(self.mean_loss, **options)

    def hidden(
        self, tokens: Tensor, cache: Cache | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Return the output of the last norm (B, T, C) for tokens (B, T) int64.

        tokens: or their embeddings (B, T, C). cache: the earlier tokens, extended.
        lengths: (B,) int64, at least 1: tokens of each text, for encoders; the rest is padding.
        Raises InputError beyond max_context.
        """
        return self.ln_f(self._run_blocks(tokens, cache, lengths))

    def logits(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the logits (B, T, V) of tokens (B, T), as `hidden`."""
        return self.hidden(tokens, cache) @ self.output_embeddings.T

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        masked_positions: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """Return cross-entropies in nats, without holding all logits.

        reduction "mean": (), with gradients; targets (B, T) int64 of all tokens, or (B, t) of
        masked_positions (B, t) int64. "none": (B, t) float32, without gradients and without the
        vocabulary's padding; targets also (B, t) of the last t tokens.
        """
        if reduction == "mean":
            return self.mean_loss(self._run_blocks(tokens), targets, masked_positions)
        with torch.no_grad():
            hidden = self.hidden(tokens)
            if masked_positions is None:
                hidden = hidden[:, hidden.size(1) - targets.size(1) :]
            else:
                hidden = select(hidden, masked_positions)
            return cross_entropies(hidden, self.output_embeddings, targets)

    def mean_loss(self, x: Tensor, targets: Tensor, positions: Tensor | None) -> Tensor:
        """Return the loss of the last block's output (B, T, C)."""
        x = self.ln_f(x)
        if positions is not None:
            x = select(x, positions)  # (B, t, C)
        weight = self.output_layer.weight
        return MeanCrossEntropy.apply(x.flatten(0, 1), weight, targets.flatten())

    def _run_blocks(
        self, tokens: Tensor, cache: Cache | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Return the last block's output (B, T, C) after cached tokens."""
        start = cache.length if cache else 0
        stop = start + tokens.size(1)
        if self.max_context is not None and stop > self.max_context:
            raise InputError(
                f"a context of {stop} tokens is too long: {self.config.pe} supports at most "
                f"{self.max_context} positions"
            )
        pos = torch.arange(start, stop, device=tokens.device)[None]  # (1, T)
        if cache is not None:
            assert not torch.is_grad_enabled(), "a cache holds no gradients"
            assert self.config.causal, "only a causal model can use a cache"
            fits = cache.capacity is None or stop <= cache.capacity
            assert fits, "the cache is too small"
            pos = pos if cache.position is None else cache.position[None]
        x = tokens if tokens.is_floating_point() else self.wte(tokens)
        # All layers share an encoding that acts on embeddings.
        x = self.posenc[0].embed(at_least_float32(x), pos)  # (B, T, C)
        recompute = self.activation_checkpointing and torch.is_grad_enabled()
        layers = zip(self.h, self.posenc, self.attention_paths, strict=True)
        for layer, (block, encoding, path) in enumerate(layers):
            context = pos, encoding, path, cache and cache.layers[layer], lengths
            if recompute:
                x = checkpoint(block, x, *context, **attention.CHECKPOINTING)
            else:
                x = block(x, *context)
        return x

    @torch.no_grad()
    def clamp_parameters_(self) -> None:
        """Clamp the encodings' parameters after a step."""
        for encoding in self.posenc:
            encoding.clamp_parameters_()

    def parameter_count(self) -> int:
        """Return the number of parameters; tied ones once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, context: int, predicted: int | None = None) -> float:
        """Return FLOPs per token, 6 N + 12 L H D T (PaLM, appendix B).

        N counts no embedding that is not tied, and the output layer only for the `predicted` tokens
        of a context. Convolutions over logits (DAPE) are applied to each pair of tokens.
        """
        c = self.config
        table = c.vocab_size * c.n_embd
        unused = 0 if predicted is None else (1 - predicted / context) * table
        unused += 0 if c.tied else table
        convolutions = [x.weight for x in self.modules() if isinstance(x, nn.Conv2d)]
        per_pair = 12 * c.n_layer * c.n_head * c.head_dim
        per_pair += 6 * sum(weight.numel() for weight in convolutions)
        return 6 * (self.parameter_count() - unused) + per_pair * context

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """Return groups: only weights of Linear and Embedding decay."""
        layers = [x for x in self.modules() if isinstance(x, nn.Linear | nn.Embedding)]
        matrices = {layer.weight for layer in layers}
        decay = [p for p in self.parameters() if p in matrices]
        no_decay = [p for p in self.parameters() if p not in matrices]
        decaying = {"params": decay, "weight_decay": weight_decay}
        return [decaying, {"params": no_decay, "weight_decay": 0.0}]

    def describe(self, sequences: int = 1) -> str:
        """Return a summary in one line; sequences: of block_size tokens, in a batch."""
        c = self.config
        block = "" if c.block == "gpt2" else f" {c.block}"
        kind = f"{c.size}{block}" if c.causal else f"{c.size}{block} encoder"
        shape, names = (sequences, c.n_head, c.block_size), []
        for path, encoding in zip(self.attention_paths, self.posenc, strict=True):
            names.append(attention.path_of_texts(path, encoding, shape).name)
        heads = c.n_head if c.n_kv_head == c.n_head else f"{c.n_head} / {c.n_kv_head}"
        return (
            f"{kind}: {c.n_layer} layers x {c.n_embd}, {heads} heads, "
            f"{self.parameter_count() / 1e6:.2f}M parameters; {c.pe}, "
            f"attention by {' and '.join(dict.fromkeys(names))}"
        )


def select(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return hidden (B, T, C) at positions (B, t): (B, t, C)."""
    return hidden.gather(1, positions[..., None].expand(-1, -1, hidden.size(-1)))
