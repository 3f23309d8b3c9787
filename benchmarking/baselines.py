"""Other implementations that bench.py compares with.

forgetting_attention:  kernels of the Forgetting Transformer (`fox theirs`),
                       github.com/zhixuan-lin/forgetting-transformer, commit 883f260. They need a
                       GPU, bfloat16 or float16, head dimension 16, 32, 64 or 128, and einops.
AuthorsCable:          network of the CABLE authors (`cable-v1 theirs`),
                       github.com/axiomlab/Cable, commit 8bc6b83.

make_transformers_model: GPT-NeoX or GPT-2 of transformers (`rope transformers`), for --against.

forgetting_attention and AuthorsCable are used if Python finds them: clone them and add their `src`
folders to PYTHONPATH.
"""

from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from model import GPT, GPTConfig


def is_installed(module: str) -> bool:
    """Return whether Python finds a module."""
    return find_spec(module) is not None


def forgetting_attention(
    q: Tensor, k: Tensor, v: Tensor, encoding, q_features: tuple, k_features: tuple, scale: float
) -> Tensor:
    """Compute attention of `fox` by its authors' kernels: q, k, v (B, H, T, D) -> (B, H, T, D).

    q_features, k_features: what `encoding.features` returned. The kernels sum the gates themselves,
    and skip what is too small to matter (adaptive_threshold "auto").
    """
    import forgetting_transformer  # pyright: ignore[reportMissingImports]

    start = k_features[0].new_zeros(1, 1, 1).expand(*q.shape[:2], 1)
    log_gates = k_features[0].diff(prepend=start)  # (B, H, T)
    options = {"head_first": True, "sm_scale": scale, "adaptive_threshold": "auto"}
    return forgetting_transformer.forgetting_attention(q, k, v, log_gates, **options)


def make_transformers_model(config: GPTConfig, positions: int) -> Any:
    """Return a decoder of transformers of the same size with random weights, for generation.

    positions: the longest text in tokens. `rope` is a GPT-NeoX that rotates whole heads, all other
    encodings are compared with GPT-2.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    shape = {"vocab_size": config.vocab_size, "bos_token_id": None, "eos_token_id": None}
    if config.pe != "rope":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_positions=positions,
                n_embd=config.n_embd,
                n_layer=config.n_layer,
                n_head=config.n_head,
                **shape,
            )
        )
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            max_position_embeddings=positions,
            hidden_size=config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            intermediate_size=4 * config.n_embd,
            hidden_act="gelu_new",
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10_000,
                "partial_rotary_factor": 1.0,
            },
            use_parallel_residual=False,
            tie_word_embeddings=True,
            **shape,
        )
    )


class AuthorsCable(nn.Module):
    """The CABLE authors' network with the interface of GPT, and their initialization and decay."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        from Cable import Cable  # pyright: ignore[reportMissingImports]

        self.config, self.network = config, Cable(config)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of tokens and targets, (B, block_size) int64 each."""
        return self.network(tokens, targets.contiguous())[1]  # the network views its targets

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        """Return groups for AdamW: parameters of two or more dimensions decay."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        return [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]

    def clamp_parameters_(self) -> None:
        """Do nothing: no parameter is bounded."""

    parameter_count, flops_per_token = GPT.parameter_count, GPT.flops_per_token
