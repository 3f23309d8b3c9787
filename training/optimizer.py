"""Optimizers by name, shared by training and the benchmarks.

`--optimizer NAME` takes a function of OPTIMIZERS, as

    def sgd(model, lr, betas, weight_decay):
        decaying, others = model.parameter_groups(weight_decay)  # matrices; the rest
        decaying["lr"] = lr / 3  # a group's own rate; without it --lr
        return torch.optim.SGD([decaying, others], lr=lr, momentum=betas[0])

The schedule multiplies the "lr" of each group by one factor. A resumed run is bit-exact if all that
changes is in the optimizer's `state`, in float32: PyTorch loads a state in the dtype of its
parameter.
"""

import math

import torch
from torch import Tensor

from pe_spec import clamp_after_steps


def adamw(model, lr: float, betas: tuple[float, float], weight_decay: float):
    """Return a fused AdamW that decays matrices and embeddings only."""
    groups = model.parameter_groups(weight_decay)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon for the first parameter group, AdamW for the others."""

    def __init__(self, matrices: dict, others: list, lr: float, betas: tuple[float, float]):
        self.muon = torch.optim.Muon([matrices], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(others, lr=lr, betas=betas, fused=True)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Update all parameters. closure: not supported."""
        muon, *adamw = self.param_groups
        for optimizer, groups in ((self.muon, [muon]), (self.adamw, adamw)):
            # Loading a checkpoint replaces groups and state.
            optimizer.param_groups, optimizer.state = groups, self.state
            optimizer.step()


def muon(model, lr: float, betas: tuple[float, float], weight_decay: float):
    """Return Muon for the matrices of a GPT's blocks, AdamW for all else.

    Updates have the size of AdamW's (Liu et al. 2025, arXiv 2502.16982), so that one rate and
    weight decay suit both; the betas are AdamW's.
    """
    matrices = dict.fromkeys(x for x in model.h.parameters() if x.ndim == 2)
    groups = model.parameter_groups(weight_decay)
    for group in groups:
        group["params"] = [x for x in group["params"] if x not in matrices]
    blocks = {"params": [*matrices], "weight_decay": weight_decay}
    return MuonAndAdamW(blocks, groups, lr, betas)


OPTIMIZERS = {"adamw": adamw, "muon": muon}


def make_optimizer(
    model,
    lr: float = 6e-4,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.1,
    name: str = "adamw",
) -> torch.optim.Optimizer:
    """Return an optimizer, which also clamps encodings; defaults as in train_gpt.py."""
    optimizer = OPTIMIZERS[name](model, lr, betas, weight_decay)
    clamp_after_steps(model.posenc, optimizer)
    return optimizer


def restore_optimizer(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, checkpoint: dict
) -> None:
    """Load a checkpoint's states, not its settings: --override changes them.

    Raises ValueError, or an error of PyTorch, if they belong to another network.
    """
    own = [{**group} for group in optimizer.param_groups]
    optimizer.load_state_dict(checkpoint["optimizer"])
    for parameter, state in optimizer.state.items():
        if isinstance(optimizer, torch.optim.AdamW):
            shapes = [state[name].shape for name in ("step", "exp_avg", "exp_avg_sq")]
            if shapes != [(), parameter.shape, parameter.shape]:
                raise ValueError("its moments have other shapes")
    if checkpoint["scaler"]:  # empty unless the checkpoint was trained in float16
        scaler.load_state_dict(checkpoint["scaler"])
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def make_grad_scaler(device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler:
    """Return a gradient scaler, enabled for float16."""
    return torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)


def optimizer_step(
    model,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    grad_clip: float = 1.0,
) -> Tensor:
    """Update the parameters from their gradients, then clear the gradients.

    grad_clip: largest gradient norm; 0: none. Returns the norm before clipping, (), on the device.
    If the scaler is enabled and a gradient is Inf or NaN, the parameters stay and the scale
    shrinks.
    """
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip or math.inf)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return norm
