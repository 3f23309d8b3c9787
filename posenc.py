"""Positional encodings: what does each one add to a transformer, and where?

One class per encoding, each with its formula and source. An encoding may touch three places, and overrides only those
it does touch:

    embed    token embeddings, once per model                            learnable, sinusoidal
    rotate   queries and keys, in every layer                            rope
    score    attention logits: each token carries a few numbers, its     alibi, cable
             *states*, and the bias of a pair is one elementwise formula
             of the query's states, the key's, and the head's parameters

To add one, write a class with `names` here (or anywhere that is imported) and train with `--pe NAME`; attention, training,
evaluation and the whole test suite take it from there. `factors` is an offer of speed: where the bias is a short sum of
products u_i * w_j it runs inside the stock fused kernel (attention.py), otherwise the exact dense path is taken.

    encodings = posenc.build("cable", heads=8, width=512, block_size=1024, layers=6)    # one instance per layer

Legend: B batch, H heads, T queries, S keys, D head size, C width; query i, key j <= i, distance d = i - j.
Biases are added after the logits are scaled. Sources: CABLE = Veisi et al. 2025; the others are named at each class.
"""

import difflib
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError

ENCODINGS: dict[str, type["Encoding"]] = {}  # every --pe name


class Encoding(nn.Module):
    """An encoding that adds nothing: the base of all others. Subclasses with `names` register themselves.

    names:        the --pe names of the class.
    scope:        "layer": an instance of its own for every layer; "model": one instance shared by all.
    max_context:  the longest sequence it can encode, in tokens; None: no limit.
    """

    names: tuple[str, ...] = ()
    scope = "layer"
    max_context: int | None = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        ENCODINGS.update(dict.fromkeys(cls.names, cls))

    def __init__(self, heads: int, width: int, block_size: int):
        """heads per layer, model width C, block_size: the training length in tokens."""
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Token embeddings (B, T, C) at positions pos (T,) int64 -> (B, T, C)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, H, T, D) of the tokens at positions pos (T,) -> the same shapes and dtypes."""
        return q, k

    def states(self, x: Tensor, pos: Tensor, last: tuple | None = None) -> tuple[tuple, tuple]:
        """The numbers each token carries -> (query states, key states): tuples of float32 (B|1, H|1, T).

        x:    (B, T, C) float32, the layer's normalised input (autocast is off); pos: (T,) int64.
        last: the key states of the token before x, each (B|1, H|1, 1), where x continues a sequence; None at its start.
        """
        return (), ()

    score = None
    """score(q_states, k_states, h): THE formula of the bias, elementwise over broadcastable states; the head's own
    parameters are indexed [h], h = arange(H)[:, None, None]. -> (B|1, H|1, T, S) float32, finite for future keys too, which
    are masked afterwards. None: no bias."""

    factors = None
    """factors(q_states, k_states) -> pairs (u, w), u (B|1, H|1, T) and w (B|1, H|1, S) float32, whose products u_i * w_j
    add up to the score; w = None stands for ones. None (the attribute): the bias has no such form."""


class NoPE(Encoding):
    """No positional encoding: only the causal mask tells positions apart (Haviv et al. 2022; Kazemnejad et al. 2024)."""

    names = ("nope",)


class Learnable(Encoding):
    """x + P[pos], P a trained table of block_size rows ~ N(0, 0.02): GPT-2's own (Radford et al. 2019).

    Past its last row it is undefined: a longer sequence is an error, "—" in tables.
    """

    names = ("learnable",)
    scope = "model"

    def __init__(self, heads, width, block_size):
        super().__init__(heads, width, block_size)
        self.table = nn.Embedding(block_size, width)
        self.max_context = block_size

    def embed(self, x, pos):
        return x + self.table(pos)


class Sinusoidal(Encoding):
    """sqrt(C) x + [sin, cos](pos / 10000^(2i/C)), i < C/2 (Vaswani et al. 2017, sections 3.4 and 3.5).

    The sqrt(C) is theirs, and needed: GPT-2's embeddings start at 0.02 and would drown in sines of size 1.
    """

    names = ("sinusoidal",)
    scope = "model"

    def embed(self, x, pos):
        angle = angles(pos, x.size(-1))  # (T, C/2)
        return math.sqrt(x.size(-1)) * x + torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)


class RoPE(Encoding):
    """Rotates the pair (q[i], q[i + D/2]) by the angle pos / 10000^(2i/D), keys likewise (Su et al. 2024, eq. 34).

    The logit then depends on distance alone. Pairs are half a head apart, as in Llama and GPT-NeoX.
    """

    names = ("rope",)

    def rotate(self, q, k, pos):
        angle = angles(pos, q.size(-1))  # (T, D/2)
        cos, sin = angle.cos().float(), angle.sin().float()

        def turn(x):  # (B, H, T, D)
            a, b = x.float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

        return turn(q), turn(k)


class WeightedFall(Encoding):
    """The family B_ij = g_i (S_i - S_j): S falls along the text, g >= 0 weighs the fall for query i.

    Query states (S, g), key states (S,). Differences are taken in float32 before anything is rounded.
    """

    def score(self, q_states, k_states, h):
        (s_i, g_i), (s_j,) = q_states, k_states
        return g_i * (s_i - s_j)

    def factors(self, q_states, k_states):
        (s_i, g_i), (s_j,) = q_states, k_states
        # Only differences of S count. From the middle query they are half as large, which halves what bf16 rounds away; and
        # as the centre is not detached, autograd gives S a gradient that sums to zero, as the exact one does.
        centre = s_i[..., s_i.size(-1) // 2, None]
        return (g_i * (s_i - centre), None), (-g_i, s_j - centre)


class ALiBi(WeightedFall):
    """-m_h d, fixed slopes m_h = 2^(-8n/H), n = 1..H (Press et al. 2021): the weighted fall of S = -pos, g = m.

    For H no power of two, the published interleaving: the slopes of the power of two below H, then every other slope of
    twice that power.
    """

    names = ("alibi",)

    def __init__(self, heads, width, block_size):
        super().__init__(heads, width, block_size)
        below = 1 << heads.bit_length() - 1
        n = torch.cat([torch.arange(1, below + 1), torch.arange(0.5, below)[: heads - below]])
        slopes = torch.exp2(-8 * n.double() / below).float()
        self.register_buffer("slopes", slopes[None, :, None], persistent=False)  # (1, H, 1)

    def states(self, x, pos, last=None):
        s = -pos.float()[None, None]  # (1, 1, T)
        return (s, self.slopes), (s,)


class Cable(WeightedFall):
    """g_i (S_i - S_j), S = cumsum(-ReLU(x w_c)), g = Softplus(x w_s) (CABLE, eqs. 2-7).

    Both linear layers map C -> H and start like every other, biases at zero. Printed, the paper's equations 5 and 7 make
    the bias positive; its text (the bias penalises distance, and is ALiBi's for steps of -1) and the authors' code make it
    fall, as here.
    """

    names = ("cable",)

    def __init__(self, heads, width, block_size):
        super().__init__(heads, width, block_size)
        self.step = nn.Linear(width, heads)  # w_c
        self.weight = nn.Linear(width, heads)  # w_s

    def states(self, x, pos, last=None):
        s = -F.relu(self.step(x)).mT.cumsum(-1)  # (B, H, T)
        s = s if last is None else s + last[0]
        return (s, F.softplus(self.weight(x)).mT), (s,)


def angles(pos: Tensor, width: int) -> Tensor:
    """pos / 10000^(2i/width), i < width/2, for pos (T,) -> (T, width/2) float64: float32 is off by 0.01 rad at 131,072."""
    i = torch.arange(0, width, 2, dtype=torch.float64, device=pos.device)
    return pos.double()[:, None] * 10000 ** (-i / width)


def build(name: str, heads: int, width: int, block_size: int, layers: int) -> nn.ModuleList:
    """The encodings of a model: one per layer, or the same one for all layers where its scope is "model".

    Raises InputError for a name that no encoding has.
    """
    check(name)
    cls = ENCODINGS[name]
    instances = 1 if cls.scope == "model" else layers
    return nn.ModuleList([cls(heads, width, block_size) for _ in range(instances)] * (layers // instances))


def check(name: str) -> None:
    """Raises InputError, naming the nearest encoding, where `name` is none."""
    if name not in ENCODINGS:
        near = difflib.get_close_matches(name, ENCODINGS, 1)
        mend = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"unknown positional encoding '{name}': {mend}choose one of {' '.join(sorted(ENCODINGS))}")
