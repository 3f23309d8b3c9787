"""Positional encodings: what does each one add to a transformer, and where?

One class per encoding, each with its formula and source. An encoding may touch five places, and overrides only those
it does touch:

    embed      token embeddings, once per model                            learnable, sinusoidal, shape, cape
    rotate     queries and keys, in every layer                            rope, yarn, ...
    score      attention logits: each token carries a few numbers, its     alibi, kerple, fire, cable, fox, ...
               *states*, and the bias of a pair is one elementwise formula
               of the query's states, the key's, and the head's parameters
    transform  attention logits: whole rows of them, logits and biases of  shaw, cope, dape, ...
               all keys that a query sees, and the query itself
    reach      attention: which keys are seen at all                       window

To add one, write a class with `names` here (or anywhere that is imported) and train with `--pe NAME`; attention, training,
evaluation and the whole test suite take it from there. `factors` is an offer of speed: where the bias is a short sum of
products u_i * w_j it runs inside the stock fused kernel (attention.py), otherwise the exact dense path is taken. Biases of
distance alone are subclasses of ByDistance and give `by_distance` in place of states and score.

    encodings = posenc.build("cable", heads=8, width=512, block_size=1024, layers=6)    # one instance per layer
    encodings = posenc.build("fire:width=16", ...)                                      # options are constructor keywords
    encodings = posenc.build("rope+cable", ...)                                         # several at once, as dapev2+kerple
    encodings = posenc.build("cable", ..., causal=False)                                # of an encoder, which sees later keys too

Legend: B batch, H heads, T queries, S keys, D head size, C width; query i, key j, distance d = i - j. A decoder sees keys j <= i; in
an encoder later ones are as far away as earlier ones: |d| stands for d, |S_i - S_j| for the fall. Biases are added after the logits
are scaled. Sources: CABLE = Veisi et al. 2025; the others are named at each class.
"""

import difflib
import functools
import inspect
import itertools
import math
import re

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
    reach:        keys this many tokens away from the query, or further, are not seen; None: all are.
    causal:       keys after the query are not seen; False, set by `see_both_ways`: they are.
    both_ways:    whether there is a form of it for that.
    least_option: the smallest value that its options take.
    """

    names: tuple[str, ...] = ()
    scope = "layer"
    max_context: int | None = None
    window_size: int | None = None
    causal = True
    supports_bidirectional = True
    min_option_value = 1

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        ENCODINGS.update(dict.fromkeys(cls.names, cls))

    def __init__(self, heads: int, channels: int, block_size: int):
        """heads per layer, channels: the model's width C, block_size: the training length in tokens."""
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Token embeddings (B, T, C) at positions pos (T,) int64 -> (B, T, C)."""
        return x

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, H, T, D) of the tokens at positions pos (T,) -> the same shapes and dtypes."""
        return q, k

    def features(self, x: Tensor, pos: Tensor, last: tuple | None = None) -> tuple[tuple, tuple]:
        """The numbers each token carries -> (query states, key states): tuples of float32 (B|1, H|1, T).

        x:    (B, T, C) float32, the layer's normalised input (autocast is off); pos: (T,) int64.
        last: the key states of the token before x, each (B|1, H|1, 1), where x continues a sequence; None at its start.
        Sums along the text are `running_sum`'s.
        """
        return (), ()

    bias = None
    """score(q_states, k_states, h): THE formula of the bias, elementwise over broadcastable states; the head's own
    parameters are indexed [h], h = arange(H)[:, None, None]. -> (B|1, H|1, T, S) float32, finite for future keys too, which
    are masked afterwards where the encoding is causal. None: no bias."""

    factors = None
    """factors(q_states, k_states) -> pairs (u, w), u (B|1, H|1, T) and w (B|1, H|1, S) float32, whose products u_i * w_j
    add up to the score; w = None stands for ones; with a fourth dimension, of many products at once. None (the attribute): the bias has
    no such form."""

    triton_bias = None
    """in_registers(q_states, k_states, h) -> (kind, tensors by name), h = arange(H): the bias as one of the kinds of kernels.py, for
    kernels that form it themselves. None (the attribute): it is of none of those kinds."""

    distance_bias = None
    """by_distance(d, h), in subclasses of ByDistance: the formula of a bias of distance alone, elementwise: d float32, negative only
    where keys after the query are seen, and heads h, broadcastable -> biases float32. None: the bias is no function of distance."""

    logits_transform = None
    """transform(logits, bias, q, d, unseen) -> what is added to logits + bias, (B, H, T, S): logits (B, H, T, S), scaled; bias
    (B|1, H|1, T|1, S|1), zero where there is none; q (B, H, T, D), rotated; all float32. d (T, S) int64: distances. unseen (T, S) bool:
    keys that must leave no trace. None (the attribute): nothing. Whole rows cost memory and time, and no fused kernel computes them."""

    def clamp_parameters_(self) -> None:
        """After each optimizer step: puts parameters back within their bounds. (A clamp in the graph would stop their
        gradients instead, and freeze a head for good.)"""

    def set_bidirectional(self) -> None:
        """From here on keys after the query are seen too. A bias of |d| alone then gives a text and its mirror image the same."""
        self.causal = False


def build(
    spec: str, heads: int, width: int, block_size: int, layers: int, causal: bool = True
) -> nn.ModuleList:
    """The encodings of a model, one for each layer; a part of scope "model" is the same instance in all of them.

    spec: "NAME", "NAME:option=value,option=value", or several joined by "+". causal: of a decoder; False: of an encoder. Raises
    InputError as `parse` does.
    """
    parts = []  # for each part of the spec, its instance in every layer
    for cls, options in parse(spec, causal):
        instances = [
            cls(heads, width, block_size, **options)
            for _ in range(1 if cls.scope == "model" else layers)
        ]
        for instance in instances:
            if not causal:
                instance.set_bidirectional()
        parts.append(instances * (layers // len(instances)))
    if len(parts) == 1:
        return nn.ModuleList(parts[0])
    return nn.ModuleList(Composition(list(layer), width) for layer in zip(*parts))


def parse(spec: str, causal: bool = True) -> list[tuple[type[Encoding], dict]]:
    """The classes of a spec, each with its options. Raises InputError, all problems at once, for unknown names and options,
    values of the wrong type, parts that would act on the same place, and for encoders those that know no keys after the query.
    """
    parsed, problems = [], []
    for part in spec.split("+"):
        name, _, words = part.partition(":")
        if name not in ENCODINGS:
            near = difflib.get_close_matches(name, ENCODINGS, 1)
            mend = f"did you mean {near[0]}? " if near else ""
            problems.append(
                f"unknown positional encoding '{name}': {mend}choose one of {' '.join(sorted(ENCODINGS))}"
            )
            continue
        cls, options = ENCODINGS[name], {}
        if not (causal or cls.supports_bidirectional):
            problems.append(
                f"{name} knows keys before the query only: choose another encoding for an encoder"
            )
        known = [
            p.name
            for p in inspect.signature(cls).parameters.values()
            if p.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        for word in filter(None, words.split(",")):
            option, _, value = word.partition("=")
            if option not in known:
                problems.append(
                    f"{name} has no option '{option}': "
                    + (f"choose from {' '.join(known)}" if known else "it has none")
                )
            elif not re.fullmatch("-?[0-9]+", value) or int(value) < cls.min_option_value:
                problems.append(
                    f"{name}: {option} is '{value}': it must be a whole number of at least {cls.min_option_value}, "
                    f"as in {name}:{option}=8"
                )
            else:
                options[option] = int(value)
        parsed.append((cls, options))
    for place in ("embed", "rotate", "logits_transform"):
        acting = [
            cls.names[0] for cls, _ in parsed if getattr(cls, place) is not getattr(Encoding, place)
        ]
        if len(acting) > 1:
            problems.append(
                f"{' and '.join(acting)} cannot be combined, both act on {place}: choose one of them"
            )
    if problems:
        raise InputError(*problems)
    return parsed


class Composition(Encoding):
    """Several encodings at once, as in `rope+cable`: embeddings and rotations in turn, biases added up, then transformed."""

    def __init__(self, parts: list[Encoding], channels: int):
        nn.Module.__init__(self)
        self.parts = nn.ModuleList(parts)
        for limit in ("max_context", "window_size"):
            setattr(
                self,
                limit,
                min(
                    (value for part in parts if (value := getattr(part, limit)) is not None),
                    default=None,
                ),
            )
        self.logits_transform = next(
            (part.logits_transform for part in parts if part.logits_transform is not None), None
        )
        biased = [part for part in parts if part.bias is not None]
        if not biased:
            self.bias = None
        if not biased or any(part.factors is None for part in biased):
            self.factors = None
        self.causal = parts[0].causal
        if len(biased) == 1:
            self.distance_bias, self.triton_bias = biased[0].distance_bias, biased[0].triton_bias
            self.names = biased[0].names  # of the bias: what records of its speed go by
        first = (
            torch.zeros(1, 1, channels),
            torch.zeros(1, dtype=torch.int64),
        )  # one token, to see how many states it carries
        self.counts = [[len(features) for features in part.features(*first)] for part in parts]

    def embed(self, x, pos):
        for part in self.parts:
            x = part.embed(x, pos)
        return x

    def rotate(self, q, k, pos):
        for part in self.parts:
            q, k = part.rotate(q, k, pos)
        return q, k

    def features(self, x, pos, last=None):
        lasts = (
            [None] * len(self.parts)
            if last is None
            else [keys for _, _, keys in self.split((), last)]
        )
        features = [part.features(x, pos, own) for part, own in zip(self.parts, lasts)]
        return sum((q for q, _ in features), ()), sum((k for _, k in features), ())

    def bias(self, q_features, k_features, h):
        return sum(
            part.bias(q, k, h)
            for part, q, k in self.split(q_features, k_features)
            if part.bias is not None
        )

    def factors(self, q_features, k_features):
        return sum(
            (
                tuple(part.factors(q, k))
                for part, q, k in self.split(q_features, k_features)
                if part.bias is not None
            ),
            (),
        )

    def clamp_parameters_(self):
        for part in self.parts:
            part.clamp_parameters_()

    def split(self, q_features, k_features):
        """(part, its query states, its key states) of all parts."""
        q_features, k_features = iter(q_features), iter(k_features)
        return [
            (part, tuple(itertools.islice(q_features, q)), tuple(itertools.islice(k_features, k)))
            for part, (q, k) in zip(self.parts, self.counts)
        ]


class WeightedDecay(Encoding):
    """The family B_ij = g_i (S_i - S_j): S falls along the text, g >= 0 weighs the fall for query i.

    Query states (S, g), key states (S,). Differences are taken in float32 before anything is rounded. Both ways: -g_i |S_i - S_j|,
    which is no sum of products.
    """

    kind = "fall"

    @staticmethod
    def cumulative_sum(steps, last):
        """S of steps (B, T, H), going on from that of the last token: (B, H, T)."""
        s = running_sum(steps.mT.contiguous())
        return s if last is None else s + last[0]

    def bias(self, q_features, k_features, h):
        (s_i, g_i), (s_j,) = q_features, k_features
        fall = s_i - s_j
        return g_i * (fall if self.causal else -fall.abs())

    def set_bidirectional(self):
        super().set_bidirectional()
        self.factors = None

    def factors(self, q_features, k_features):
        (s_i, g_i), (s_j,) = q_features, k_features
        # Only differences of S count. From the middle query they are half as large, which halves what bf16 rounds away; and
        # as the centre is not detached, autograd gives S a gradient that sums to zero, as the exact one does.
        centre = s_i[..., s_i.size(-1) // 2, None]
        return (g_i * (s_i - centre), None), (-g_i, s_j - centre)

    def triton_bias(self, q_features, k_features, h):
        return self.kind, dict(zip(("s_i", "g", "s_j"), q_features + k_features))


class Cable(WeightedDecay):
    """g_i (S_i - S_j), S = cumsum(-ReLU(x w_c)), g = Softplus(x w_s) (CABLE, eqs. 2-7).

    Both linear layers map C -> H and start like every other, biases at zero. Printed, the paper's equations 5 and 7 make
    the bias positive; its text (the bias penalises distance, and is ALiBi's for steps of -1) and the authors' code make it
    fall, as here.
    """

    names = ("cable",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.step = nn.Linear(channels, heads)  # w_c
        self.weight = nn.Linear(channels, heads)  # w_s

    def features(self, x, pos, last=None):
        gates = [self.step, self.weight]  # x is read once for both
        step, weight = F.linear(
            x, *(torch.cat([getattr(gate, name) for gate in gates]) for name in ("weight", "bias"))
        ).chunk(2, -1)
        s = self.cumulative_sum(-F.relu(step), last)
        return (s, F.softplus(weight).mT.contiguous()), (s,)  # as the kernels read it


class CableNW(WeightedDecay):
    """S_i - S_j, S as in `cable`: CABLE without the weight g (CABLE, eq. 5, there CABLE_NW)."""

    names = ("cable-nw",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.step = nn.Linear(channels, heads)

    def features(self, x, pos, last=None):
        s = self.cumulative_sum(-F.relu(self.step(x)), last)
        return (s, s.new_ones(1, 1, 1)), (s,)


class Fox(WeightedDecay):
    """S_i - S_j, S = cumsum(log sigmoid(x w_f + b_f)): the forget gate of the Forgetting Transformer (Lin et al. 2025).

    As -Softplus(z) = log sigmoid(-z), it is also the bias of CABLE's first version, the weights' sign turned (its eqs. 2-4; eq. 4 with its
    own sign turned, as S falls).
    """

    names = ("fox", "cable-v1")

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.gate = nn.Linear(channels, heads)

    def features(self, x, pos, last=None):
        s = self.cumulative_sum(F.logsigmoid(self.gate(x)), last)
        return (s, s.new_ones(1, 1, 1)), (s,)


class LogDecay(WeightedDecay):
    """The family -log(b^2 + 1), b a bias that falls: a gentler slope."""

    factors = None
    kind = "log-fall"

    def bias(self, q_features, k_features, h):
        return -super().bias(q_features, k_features, h).square().log1p()


class KCable(LogDecay, Cable):
    """-log(b^2 + 1), b the bias of `cable` (CABLE, section 5.6), for shallow models."""

    names = ("k-cable",)


class KFox(LogDecay, Fox):
    """-log(b^2 + 1), b the bias of `cable-v1` (CABLE's first version, section 5.4, which prints the sign turned)."""

    names = ("k-cable-v1",)


class NoPE(Encoding):
    """No positional encoding: only the causal mask tells positions apart (Haviv et al. 2022; Kazemnejad et al. 2024); nothing does in
    an encoder, to which a text is a bag of words."""

    names = ("nope",)


class ALiBi(WeightedDecay):
    """-m_h d, fixed slopes m_h = 2^(-8n/H), n = 1..H, interleaved as published where H is no power of two (Press et al. 2021): the
    weighted fall of S = -pos, g = m."""

    names = ("alibi",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.set_slopes(alibi_exponents(heads))

    def set_slopes(self, exponents):
        """2^(-exponents), (H,) float64."""
        self.register_buffer(
            "slopes", torch.exp2(-exponents).float()[None, :, None], persistent=False
        )  # (1, H, 1)

    def features(self, x, pos, last=None):
        s = -pos.float()[None, None]  # (1, 1, T)
        return (s, self.slopes), (s,)


class DistanceBias(Encoding):
    """The family of biases that depend on the distance d = i - j and the head alone."""

    def features(self, x, pos, last=None):
        p = pos.float()[None, None]  # (1, 1, T)
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        d = q_features[0] - k_features[0]
        return self.distance_bias(d.clamp(min=0) if self.causal else d, h)

    def triton_bias(self, q_features, k_features, h):
        return "distance", {
            "table": self.distance_bias(
                distances(k_features[0].size(-1), self.causal, h.device), h[:, None]
            )
        }


class Kerple(DistanceBias):
    """-r1 log(1 + r2 d), r1 ~ U(0, 2), r2 ~ U(0, 1), both kept >= 0.01 (Chi et al. 2022, the logarithmic variant)."""

    names = ("kerple",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r1 = nn.Parameter(2 * torch.rand(heads))
        self.r2 = nn.Parameter(torch.rand(heads))
        self.clamp_parameters_()

    def distance_bias(self, d, h):
        return -self.r1[h] * (self.r2[h] * d.abs()).log1p()

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r1.clamp_(min=0.01)
        self.r2.clamp_(min=0.01)


class KerplePower(DistanceBias):
    """-r1 d^r2, r1 ~ U(0, 1) kept >= 0.01, r2 ~ U(0, 2) kept in [0.01, 2] (Chi et al. 2022, the power variant)."""

    names = ("kerple-power",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r1 = nn.Parameter(torch.rand(heads))
        self.r2 = nn.Parameter(2 * torch.rand(heads))
        self.clamp_parameters_()

    def distance_bias(self, d, h):
        return -self.r1[h] * d.abs() ** self.r2[h]

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r1.clamp_(min=0.01)
        self.r2.clamp_(0.01, 2)


class T5(DistanceBias):
    """r_h[bucket(d)]: T5's buckets, exact up to half of them, then logarithmic up to max_distance (Raffel et al. 2020).

    Learned, r ~ N(0, 0.02), one table for all layers, as in T5. Both ways: half of the buckets for keys after the query, as in T5's
    encoder.
    """

    names = ("t5",)
    scope = "model"

    def __init__(self, heads, channels, block_size, *, buckets: int = 32, max_distance: int = 128):
        super().__init__(heads, channels, block_size)
        self.buckets, self.max_distance = buckets, max_distance
        if buckets < 4 or max_distance <= buckets // 2:
            raise InputError(
                f"t5: with buckets {buckets} and max_distance {max_distance} there is no logarithmic bucket: give at least 4 "
                "buckets, and a max_distance above half of them"
            )
        self.table = nn.Parameter(0.02 * torch.randn(heads, buckets))

    def distance_bias(self, d, h):
        buckets = self.buckets if self.causal else self.buckets // 2
        exact, after, d = buckets // 2, d < 0, d.abs()
        far = exact + (d.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact) * (
            buckets - exact
        )
        return self.table[
            h,
            torch.where(d < exact, d, far.floor().clamp(max=buckets - 1)).long() + buckets * after,
        ]


class T5Clip(DistanceBias):
    """r_h[min(d, k)], a learned bias for every distance: the CABLE paper's wording of T5's bias, where distances beyond the
    training length take the last one's; and DIET-REL (Chen et al. 2021, eq. 3). r ~ N(0, 0.02); k is block_size - 1 unless given.
    """

    names = ("t5-clip", "diet-rel")

    def __init__(self, heads, channels, block_size, *, k: int | None = None):
        super().__init__(heads, channels, block_size)
        self.k = block_size - 1 if k is None else k
        self.table = nn.Parameter(0.02 * torch.randn(heads, self.k + 1))

    def distance_bias(self, d, h):
        return self.table[h, d.abs().clamp(max=self.k).long()]


class FIRE(Encoding):
    """f(psi(d) / psi(max(L, i))), psi(x) = log(|c| x + 1), f an MLP 1 -> width -> H with ReLU (Li et al. 2024, eqs. 5-7).

    Learned: f, c from 0.1 on, and L as a multiple of `threshold`, from 1 on. No function of distance alone: beyond L, a
    query's own position stretches the scale; both ways, that of the later one of query and key.
    """

    names = ("fire",)

    def __init__(self, heads, channels, block_size, *, width: int = 32, threshold: int = 512):
        super().__init__(heads, channels, block_size)
        self.threshold = threshold
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        # The MLP starts as torch's Linear does: with small weights and no biases, half of its units would never fire.
        self.w1, self.b1 = (nn.Parameter(torch.empty(width).uniform_(-1, 1)) for _ in range(2))
        self.w2, self.b2 = (
            nn.Parameter(torch.empty(*shape).uniform_(-1, 1) / width**0.5)
            for shape in ((heads, width), (heads,))
        )

    def features(self, x, pos, last=None):
        p = pos.float()[None, None]  # (1, 1, T)
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        (i,), (j,) = q_features, k_features
        ratio = self.stretch((i - j).abs()) / self.longest(torch.maximum(i, j))
        hidden = F.relu(ratio[..., None] * self.w1 + self.b1)  # (1, 1, T, S, width)
        heads = h.flatten()
        return F.linear(hidden, self.w2[heads], self.b2[heads])[0].movedim(-1, 1)  # (1, H, T, S)

    def stretch(self, x):
        """psi: of distances, or of the longest one."""
        return (self.c.abs() * x).log1p()

    def longest(self, i):
        """psi(max(L, i)), what distances are divided by where i is the later one of query and key."""
        return self.stretch(torch.maximum(i, (self.threshold * self.multiplier).abs()))

    def triton_bias(self, q_features, k_features, h):
        d = distances(k_features[0].size(-1), self.causal, h.device).abs()
        return "pieces", {
            "table": self.stretch(d)[None],
            "g": 1 / self.longest(q_features[0]),
            "pieces": self.pieces(),
        }

    def pieces(self):
        """f as a function of straight pieces: (H, 3, K), K a power of two above its units. First the K - 1 ascending
        places where a unit turns, or infinity, then slopes and intercepts of the pieces before, between and after them.
        """
        count = 1 << len(self.w1).bit_length()
        with torch.no_grad():
            turns, order = torch.where(self.w1 == 0, torch.inf, -self.b1 / self.w1).sort()
            rank = order.argsort()  # a unit is active after its turn, or up to it
            active = torch.where(
                self.w1 > 0,
                torch.arange(count, device=rank.device)[:, None] > rank,
                torch.arange(count, device=rank.device)[:, None] <= rank,
            )  # (K, width)
            active = torch.where(self.w1 == 0, self.b1 > 0, active).to(self.w1.dtype)
        slopes = (self.w2 * self.w1) @ active.T  # (H, K)
        intercepts = (self.w2 * self.b1) @ active.T + self.b2[:, None]
        ends = F.pad(turns, (0, count - len(turns)), value=torch.inf).expand(len(slopes), count)
        return torch.stack([ends, slopes, intercepts], 1)


class RoPE(Encoding):
    """Rotates the pair (q[i], q[i + D/2]) by the angle pos * base^(-2i/D), keys likewise (Su et al. 2024, eq. 34; base 10,000).

    The logit then depends on distance alone. Pairs are half a head apart, as in Llama and GPT-NeoX.
    """

    names = ("rope",)
    stretch = 1.0
    """of queries and keys"""

    def __init__(self, heads, channels, block_size, *, base: int = 10_000):
        super().__init__(heads, channels, block_size)
        self.base = base

    def frequencies(self, width: int, device: torch.device) -> Tensor:
        """By which angle each pair turns from token to token, for heads of `width` columns: (D/2,) float64, the fastest first."""
        return frequencies(width, self.base, device)

    def rotate(self, q, k, pos):
        angle = pos.double()[:, None] * self.frequencies(q.size(-1), pos.device)  # (T, D/2)
        sin, cos = (x[:, None] for x in sin_cos(angle, self.stretch))  # (T, 1, D/2)

        def turn(
            x,
        ):  # as the layer has it, (B, T, H, D) in memory, which its attention then keeps: no copy of what that returns
            a, b = x.transpose(1, 2).float().chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype).transpose(1, 2)

        return turn(q), turn(k)


class Learnable(Encoding):
    """x + P[pos], P a trained table of block_size rows ~ N(0, 0.02): GPT-2's own (Radford et al. 2019).

    Past its last row it is undefined: a longer sequence is an error, "—" in tables.
    """

    names = ("learnable",)
    scope = "model"

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.table = nn.Embedding(block_size, channels)
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
        return math.sqrt(x.size(-1)) * x + sinusoids(pos, x.size(-1)).to(x.dtype)


def alibi_exponents(heads: int) -> Tensor:
    """Of ALiBi's slopes 2^-x, (H,) float64: 8n/H, n = 1..H; for H no power of two those of the power of two below H, then every other one
    of twice that power."""
    below = 1 << heads.bit_length() - 1
    n = torch.cat([torch.arange(1, below + 1), torch.arange(0.5, below)[: heads - below]])
    return 8 * n.double() / below


def distances(keys: int, causal: bool, device: torch.device) -> Tensor:
    """All that there are between so many tokens, ascending, negative ones only where not causal: (N,) float32."""
    return torch.arange(0 if causal else 1 - keys, keys, device=device, dtype=torch.float32)


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width), i < width/2, (width/2,) float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def angles(pos: Tensor, width: int) -> Tensor:
    """pos / 10000^(2i/width), i < width/2, for pos (...,) -> (..., width/2) float64: float32 is off by 0.01 rad at 131,072."""
    return pos.double()[..., None] * frequencies(width, 10_000, pos.device)


def sinusoids(pos: Tensor, width: int) -> Tensor:
    """[sin, cos](pos / 10000^(2i/width)), i < width/2, for pos (...,) -> (..., width) float64."""
    angle = angles(pos, width)
    return torch.cat([angle.sin(), angle.cos()], -1)


def running_sum(x: Tensor) -> Tensor:
    """x.cumsum(-1) as PyTorch itself computes it, compiled or not.

    On a GPU torch.compile would split a row among programs that add up whichever sums of others are there first: not the same bits
    every time. And torch 2.11 fails to compile a scan of what a broadcast bias was added to. A single number is its own sum.
    """
    return torch.ops.posenc.running_sum(x) if x.size(-1) > 1 else x


def sin_cos(angle: Tensor, radius: float = 1.0) -> tuple[Tensor, Tensor]:
    """radius times sines and cosines of angles (..., T, N) float64, which need no gradient -> two of that shape, float32.

    torch.compile would work them out in float64 for every number that they are multiplied by: all heads of all sequences, in
    arithmetic that GPUs are slow at. One token is left to it.
    """
    if angle.size(-2) > 1:
        return torch.ops.posenc.circle(angle, radius)
    return (angle.sin() * radius).float(), (angle.cos() * radius).float()


def _two_like(angle, radius):
    return [
        torch.empty_like(angle, dtype=torch.float32, memory_format=torch.contiguous_format)
        for _ in range(2)
    ]


def _sin_cos(angle, radius):
    found = [
        function(angle, out=out)
        for function, out in zip((torch.sin, torch.cos), _two_like(angle, radius))
    ]
    return found if radius == 1 else [x.mul_(radius) for x in found]


def _operator(name, function, schema, fake):
    """None where it is there already: exported models bring copies of this file, and to register it again would end the first."""
    if hasattr(torch.ops.posenc, name):
        return None
    operator = torch.library.custom_op(f"posenc::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    return operator


_operator("circle", _sin_cos, "(Tensor angle, float radius) -> (Tensor, Tensor)", _two_like)
if _sums := _operator(
    "running_sum",
    lambda x: x.cumsum(-1),
    "(Tensor x) -> Tensor",
    functools.partial(torch.empty_like, memory_format=torch.contiguous_format),
):
    _sums.register_autograd(lambda ctx, grad: running_sum(grad.flip(-1)).flip(-1))
