"""The network: GPT-2 with any positional encoding in place of its learned one.

    model = GPT(GPTConfig(size="small", pe="cable", vocab_size=50304, block_size=1024))
    logits = model(tokens)              # (B, T) int64 -> (B, T, V)
    loss = model(tokens, targets)       # mean cross-entropy in nats

With causal=False it is an encoder, as BERT is: tokens see those after them too, and a loss is of those that are masked in what it reads.
    loss = model(masked, targets, places)

Any sequence length at any time: block_size is the training length, a limit only for encodings that have one (learnable).
Names follow GPT-2's checkpoints (wte, h, ln_1, attn.c_attn, ...).

Legend: B batch, T tokens, C width, H heads, D head size = C / H, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import attention
import more_encodings  # noqa: F401 (registers them)
import posenc
import triton_attention  # noqa: F401, registers the attention path "triton"
from attention import SKIP_TOLERANCE
from errors import InputError
from generation.kv_cache import Cache, LayerCache
from hf_interop import pretrained

SIZES = {  # layers, heads, width
    "quickstart": (4, 4, 128),
    "tiny": (6, 8, 512),
    "small": (12, 12, 768),
    "medium": (24, 16, 1024),
    "large": (36, 20, 1280),
    "xl": (48, 25, 1600),
}
OTHER = "custom"  # none of these
READ = 1024  # tokens that pass through the network at a time where a cache lets them
LOGITS_CHUNK = (
    2**26
)  # elements of the largest (tokens, V) block of logits held at a time: 256 MB in float32
GPU_CHUNK = 4  # times as many on a GPU in training: to add up a chunk's gradient of the embedding takes as long as the loss of 800 tokens
GPU_CHUNKS = 8  # at most: torch.compile puts off the adding, and holds nearly all logits at once where there are many more


@dataclass
class GPTConfig:
    """What a network is; n_layer, n_head and n_embd are taken from `size` where they are None, and tell it where they are not."""

    size: str = "small"
    pe: str = "cable"
    vocab_size: int = 50304
    block_size: int = 1024
    n_layer: int | None = None
    n_head: int | None = None
    n_embd: int | None = None
    attn_scale: float | None = None
    causal: bool = True
    attention: str = "auto"
    skip_tolerance: float = SKIP_TOLERANCE

    def __post_init__(self):
        """Fills in the size. Raises InputError with all problems at once."""
        problems = []
        given = self.n_layer, self.n_head, self.n_embd
        if self.size in SIZES or self.size == OTHER and None not in given:
            shape = tuple(
                known if own is None else own
                for own, known in zip(given, SIZES.get(self.size, given))
            )
            self.n_layer, self.n_head, self.n_embd = shape
            self.size = next((size for size, known in SIZES.items() if known == shape), OTHER)
            if self.attn_scale is not None and self.attn_scale <= 0:
                problems.append(f"attn_scale is {self.attn_scale}: it must be above 0, or null")
            if self.n_head > 0 and (self.n_embd % self.n_head or self.n_embd // self.n_head % 2):
                problems.append(
                    f"n_embd {self.n_embd} gives {self.n_head} heads {self.n_embd / self.n_head:g} columns each: "
                    f"choose an n_embd that is a multiple of {2 * self.n_head}"
                )
            for name in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size"):
                if getattr(self, name) < 1:
                    problems.append(f"{name} is {getattr(self, name)}: it must be at least 1")
            if not 0 <= self.skip_tolerance < 1:
                problems.append(
                    f"skip_tolerance is {self.skip_tolerance}: it must be at least 0 and below 1"
                )
        else:
            problems.append(f"unknown size '{self.size}': choose one of {' '.join(SIZES)}")
        try:
            self.encodings = posenc.parse(self.pe, self.causal)  # for posenc.build; no field
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)


class Attention(nn.Module):
    """Self-attention; the encoding comes with each call, for one may serve several layers."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = config.n_head
        self.scale = config.attn_scale or 1 / math.sqrt(config.n_embd // config.n_head)
        self.skip_tolerance = config.skip_tolerance
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        encoding: posenc.Encoding,
        path: str,
        past: LayerCache | None,
        lengths: Tensor | None,
    ) -> Tensor:
        q, k, v, packed_qkv = self.qkv(x, pos, encoding)
        with torch.autocast(x.device.type, enabled=False):  # sums along the text need float32
            q_features, k_features = encoding.features(
                x.float(), pos, past.last() if past else None
            )
        window_size = query_offset = None
        if past:
            k, v, *k_features = past.extend(k, v, *k_features)
            window_size = past.window
            query_offset = None if past.position is None else pos
        y = attention.attend(
            q,
            k,
            v,
            attention.BiasInputs(encoding, q_features, tuple(k_features)),
            self.scale,
            path,
            attention.mask_spec_of(
                encoding, window_size, lengths, query_offset, self.skip_tolerance
            ),
            packed_qkv,
        )
        return self.c_proj(y.transpose(1, 2).flatten(2))  # (B, T, C)

    def qkv(
        self, x: Tensor, pos: Tensor, encoding: posenc.Encoding
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries and keys, rotated, and values: (B, T, C) -> three (B, H, T, D); and, where nothing was, their source (B, T, 3 C)."""
        packed = self.c_attn(x)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in packed.chunk(3, -1))
        rotated = encoding.rotate(q, k, pos)
        return *rotated, v, packed if rotated[0] is q and rotated[1] is k else None


class MLP(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config: GPTConfig):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        pos: Tensor,
        encoding: posenc.Encoding,
        path: str,
        past: LayerCache | None,
        lengths: Tensor | None,
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), pos, encoding, path, past, lengths)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2: pre-norm blocks, tied embeddings, no dropout; `posenc` holds the encoding of each layer."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.posenc = posenc.build(
            config.encodings,
            config.n_head,
            config.n_embd,
            config.block_size,
            config.n_layer,
            config.causal,
        )
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.path = attention.resolve_path(config.attention, self.posenc[0])
        self.activation_checkpointing = (
            False  # True: blocks are computed again in backward, instead of kept
        )
        self.init_weights()

    @classmethod
    def from_pretrained(
        cls, name: str, file: str | None = None, block_size: int = 1024, attn_scale: float = 1.0
    ) -> "GPT":
        """Weights of others; the logits are theirs. Raises InputError where there are none, or a library is missing.

        name: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl" from the hub, or a folder that transformers saved: Hugging Face's GPT-2.
        "axiomlaborg/Cable", and which file of it on the hub, or the path of a file: a checkpoint by the CABLE authors' code, which
        is `cable-v1`. It holds neither block_size, the training length, nor attn_scale: their training code multiplies by 1.
        """
        settings, weights = pretrained.read(name, file)
        if settings["pe"] == "cable-v1":
            settings |= {"block_size": block_size, "attn_scale": attn_scale}
        model = cls(GPTConfig(**settings))
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(
                f"{name} is another model ({' '.join(str(error).split())[:200]}): choose GPT-2 or CABLE's"
            ) from None
        return model

    @torch.no_grad()
    def init_weights(self):
        """Starting values, as GPT-2's; encodings set those of their own that are no Linear or Embedding.

        | weights                                           | start                 |
        | Linear and Embedding, encodings' gates included   | N(0, 0.02)            |
        | c_proj, which writes to the residual stream       | N(0, 0.02 / sqrt(2L)) |
        | biases                                            | 0                     |
        | LayerNorm                                         | 1, bias 0             |
        """
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                residual = math.sqrt(2 * self.config.n_layer) if name.endswith("c_proj") else 1
                module.weight.normal_(0, 0.02 / residual)
            if isinstance(module, nn.Linear):
                module.bias.zero_()

    def forward(
        self,
        tokens: Tensor,
        targets: Tensor | None = None,
        places: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of tokens (B, T) int64, or with targets (B, T) their mean cross-entropy in nats.

        places: (B, t) int64, those of the tokens that targets (B, t) belong to. cache: holds the tokens before, and takes these in.
        """
        if targets is None:
            return self.hidden(tokens, cache) @ self.wte.weight.T
        return self.mean_loss(self._read(tokens, cache), targets, places)

    def mean_loss(self, x: Tensor, targets: Tensor, places: Tensor | None) -> Tensor:
        """As `forward`, of what the last block gives, (B, T, C)."""
        return MeanCrossEntropy.apply(
            _at(self.ln_f(x), places).flatten(0, 1), self.wte.weight, targets.flatten()
        )

    def compile(self, **options):
        """By torch.compile: a graph that all blocks have in common, and one of the loss. As one graph a network takes as many times longer
        to compile as it has layers, reads the residual stream again and again, and DistributedDataParallel has to wait for its end."""
        torch._dynamo.config.optimize_ddp = (
            False  # or its buckets would cut each of them into several
        )
        for block in self.h:
            block.compile(**options)
        self.mean_loss = torch.compile(self.mean_loss, **options)

    def hidden(
        self, tokens: Tensor, cache: Cache | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """What the last LayerNorm gives: (B, T) -> (B, T, C). Raises InputError past the encoding's max_context.

        lengths: (B,) int64, how many tokens each text has, at least 1; what follows them is padding. Decoders do without.
        """
        return self.ln_f(self._read(tokens, cache, lengths))

    def _read(self, tokens, cache=None, lengths=None):
        first = cache.length if cache else 0
        stop, limit = first + tokens.size(1), self.max_context
        if limit is not None and stop > limit:
            raise InputError(
                f"{stop} tokens of context: {self.config.pe} knows positions up to {limit} only"
            )
        assert (
            cache is None
            or (cache.capacity is None or stop <= cache.capacity)
            and not torch.is_grad_enabled()
            and self.config.causal
        )
        return self._blocks(tokens, torch.arange(first, stop, device=tokens.device), cache, lengths)

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Logits (B, V) after one more token of each row, (B, 1), with a cache of fixed shapes. Up to its capacity: unchecked,
        as the position is known to the device alone."""
        logits = self.ln_f(self._blocks(tokens, cache.position, cache))[:, 0] @ self.wte.weight.T
        cache.position += 1
        return logits

    def _blocks(self, tokens, pos, cache, lengths=None):
        x = self.posenc[0].embed(self.wte(tokens), pos)  # (B, T, C)
        for layer, (block, encoding) in enumerate(zip(self.h, self.posenc)):
            if self.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(
                    block,
                    x,
                    pos,
                    encoding,
                    self.path,
                    None,
                    lengths,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                x = block(
                    x, pos, encoding, self.path, cache.layers[layer] if cache else None, lengths
                )
        return x

    @torch.no_grad()
    def losses(
        self,
        tokens: Tensor,
        targets: Tensor,
        places: Tensor | None = None,
        cache_window: int | None = None,
    ) -> Tensor:
        """Cross-entropies in nats, (B, t) float32, of the targets (B, t) of the last t of tokens (B, T), or of those at `places` (B, t);
        logits never exist all at once.

        cache_window: no token sees another that far back or further; memory does not grow with T then."""
        if places is not None:
            hidden = _at(self.hidden(tokens), places)
            return cross_entropies(
                hidden.flatten(0, 1), self.wte.weight, targets.flatten()
            ).view_as(targets)
        first, losses = tokens.size(1) - targets.size(1), []
        cache = Cache(self, window=cache_window) if cache_window else None
        for start in range(0, tokens.size(1), READ if cache else tokens.size(1)):
            part = tokens[:, start : start + READ] if cache else tokens
            hidden, skipped = self.hidden(part, cache), max(0, first - start)
            if skipped < part.size(1):
                y = targets[:, start + skipped - first :][:, : part.size(1) - skipped]
                losses.append(
                    cross_entropies(
                        hidden[:, skipped:].flatten(0, 1), self.wte.weight, y.flatten()
                    ).view_as(y)
                )
        return torch.cat(losses, 1)

    @property
    def max_context(self) -> int | None:
        """The longest sequence the encoding can take, in tokens; None: no limit."""
        return self.posenc[0].max_context

    def clamp_parameters_(self) -> None:
        """After each optimizer step: the encodings' parameters back into their bounds."""
        for encoding in self.posenc:
            encoding.clamp_parameters_()

    def parameter_count(self) -> int:
        """All parameters, tied ones once."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self, context: int, predicted: int | None = None) -> float:
        """Of training, forward and backward: 6 N + 12 L C T, N all parameters, the tied embedding once (PaLM, appendix B), or, where
        `predicted` of the tokens alone have logits, for their share."""
        c = self.config
        idle = 0 if predicted is None else (1 - predicted / context) * c.vocab_size * c.n_embd
        return 6 * (self.parameter_count() - idle) + 12 * c.n_layer * c.n_embd * context

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """For AdamW: weights of Linear and Embedding decay; biases, norms and encodings' own tables, scalars and convolutions do not."""
        decayed = {m.weight for m in self.modules() if isinstance(m, (nn.Linear, nn.Embedding))}
        rest = [p for p in self.parameters() if p not in decayed]
        decay = [p for p in self.parameters() if p in decayed]
        return [
            {"params": decay, "weight_decay": weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]

    def describe(self) -> str:
        """One line for the console."""
        c = self.config
        return (
            f"{c.size}{'' if c.causal else ' encoder'}: {c.n_layer} layers x {c.n_embd}, {c.n_head} heads, "
            f"{self.parameter_count() / 1e6:.2f}M parameters; {c.pe}, attention by {self.path}"
        )


def _at(hidden, places):
    """(B, T, C) at places (B, t) -> (B, t, C)."""
    return (
        hidden
        if places is None
        else hidden.gather(1, places[..., None].expand(-1, -1, hidden.size(-1)))
    )


def cross_entropies(x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """-log softmax(x weight^T)[target] of each row in nats: (N, C), (V, C), (N,) int64 -> (N,) float32; without gradients."""
    chunks = _chunks(x.to(weight.dtype), targets, LOGITS_CHUNK // len(weight))
    with torch.autocast(
        x.device.type, enabled=False
    ):  # bfloat16 would round logits near -100, as OpenAI's GPT-2 has them, to halves
        return torch.cat(
            [F.cross_entropy(rows @ weight.T, y, reduction="none") for rows, y in chunks]
        )


def _chunks(x, targets, rows):
    return zip(x.split(max(1, rows)), targets.split(max(1, rows)))


class MeanCrossEntropy(torch.autograd.Function):
    """The mean of `cross_entropies`, () float32, with gradients: worked out chunk by chunk on the way forward, while the chunk's
    logits are there, so that all logits never are, nor have to be computed twice. Products are of autocast's dtype, sums float32.

    (torch 2.13's linear_cross_entropy, which also works in chunks, rounds the loss itself to bfloat16, an error of up to 0.4%.)
    """

    @staticmethod
    def forward(ctx, x, weight, targets):
        losses, x_grads, weight_grad = [], [], torch.zeros_like(weight)
        size = (
            max(GPU_CHUNK * LOGITS_CHUNK // len(weight), -(-len(x) // GPU_CHUNKS))
            if x.is_cuda
            else LOGITS_CHUNK // len(weight)
        )
        for rows, y in _chunks(x, targets[:, None], size):
            logits = rows @ weight.T
            log_p = logits.float().log_softmax(-1)
            losses.append(-log_p.gather(1, y))
            # Of the logits, times N: divided last, or float16 would lose it. Compiled, the zeros and ones are a comparison of numbers, and
            # all from `float` to here one kernel, which writes nothing but this.
            grad = log_p.exp_().sub_(torch.zeros_like(log_p).scatter_(1, y, 1)).to(logits.dtype)
            x_grads.append(grad @ weight)
            weight_grad += grad.T @ rows
        ctx.save_for_backward(torch.cat(x_grads), weight_grad)
        return torch.cat(losses).mean()

    @staticmethod
    def backward(ctx, grad):
        x_grad, weight_grad = ctx.saved_tensors
        grad = grad / len(x_grad)
        return x_grad.to(grad.dtype) * grad, weight_grad * grad, None
