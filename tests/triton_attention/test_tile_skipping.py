"""Tests of tile skipping: skipped tiles cannot matter, and no tile is skipped that can."""

import numpy as np
import pytest
import torch
from kernel_cases import (
    DEVICE,
    SCALE,
    gradients,
    make_inputs,
    reference,
    run_kernels,
    set_small_tiles,
    set_tile_sizes,
    small_tiles,  # noqa: F401
    small_tiles_on_cpu,  # noqa: F401
    to_float32,
)
from torch.testing import assert_close

from triton_attention import tile_sizes, tile_skipping


def find_kept(inputs, tolerance, causal=True):
    """Return the kept tiles (1 or 2, B, H, tiles) and each row's weight in the others (B, H, T)."""
    x = to_float32(inputs)
    tensors = (x[name] for name in "qksgs")
    kept = tile_skipping.kept_tiles(*tensors, SCALE, causal, tolerance)
    position = torch.arange(x["q"].size(2), device=DEVICE)
    M, N, *_ = tile_sizes.select("decay", 16, torch.float32)["forward"]
    # (1 or 2, B, H, T, 1)
    limits = N * kept.repeat_interleave(M, -1)[..., : len(position), None]
    skipped = position < limits[0]  # (B, H, T, S)
    if not causal:
        skipped = skipped | (position >= limits[1])
    return kept, (reference("decay", inputs, causal=causal)[1] * skipped).sum(-1)


@pytest.mark.parametrize(
    "tolerance, keys, T, causal",
    [
        *((2.0**-24, 16, 128, causal) for causal in (True, False)),
        (2.0**-8, 16, 115, False),
        (2.0**-24, 32, 120, True),
        (2.0**-24, 64, 2070, False),
    ],
)
def test_skipped_tiles_do_not_matter(tolerance, keys, T, causal, monkeypatch):
    """Several tiles are skipped, their weight is within the tolerance, and results are right.

    In the last case, nearly all of 130 tiles of queries skip a tile of keys.
    """
    set_small_tiles(monkeypatch, keys)
    if T > 2000:
        sizes = {"forward": (16, 64, 4, 1), "rows": (16, 64, 4, 1), "columns": (64, 128, 4, 1)}
        set_tile_sizes(monkeypatch, sizes)
    inputs = make_inputs("decay", T, T, 16, B=1, H=1, steep=40.0)
    inputs["q"] = inputs["q"] / 10
    kept, weight = find_kept(inputs, tolerance, causal)
    assert kept[0, 0, 0, -1] * keys > 32
    if not causal:
        assert kept[1, 0, 0, 0] * keys < T - 32
    assert weight.max() <= tolerance
    exact = gradients(lambda x: reference("decay", x, causal=causal)[0], inputs, torch.float32)
    options = {"causal": causal, "skip_tolerance": tolerance}
    actual = gradients(lambda x: run_kernels("decay", x, **options), inputs, torch.float32)
    for name in actual:
        atol = 3 * tolerance * exact[name].abs().max().item() + 1e-5
        assert_close(actual[name], exact[name], rtol=3 * tolerance + 1e-4, atol=atol)


@pytest.mark.parametrize(
    "causal, keys, rows",
    [
        *((causal, slice(16), slice(96, 128)) for causal in (True, False)),
        (False, slice(112, 128), slice(32)),
    ],
)
def test_skipped_tiles_are_not_read(causal, keys, rows, small_tiles):  # noqa: F811
    """Rows far from some keys do not read them; for these keys' gradients they are not read."""

    def results(dy=None, **options):
        dy = torch.ones(16, device=DEVICE) if dy is None else dy
        leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
        y = run_kernels("decay", leaves, causal=causal, **options)
        qkv = [leaves[name] for name in "qkv"]
        dq, dk, dv = torch.autograd.grad(y, qkv, dy.expand_as(y))
        return y.detach()[..., rows, :], dq[..., rows, :], dk[..., keys, :], dv[..., keys, :]

    inputs = to_float32(make_inputs("decay", 128, 128, 16, B=1, H=1, steep=30.0))
    y, dq, dk, dv = results()

    nan_dy = torch.ones(128, 16, device=DEVICE)
    nan_dy[rows] = torch.nan
    _, _, nan_dk, nan_dv = results(nan_dy)
    assert torch.equal(nan_dk, dk) and torch.equal(nan_dv, dv)
    _, _, nan_dk, nan_dv = results(nan_dy, skip_tolerance=0.0)
    assert nan_dk.isnan().all() and nan_dv.isnan().all()

    inputs["v"][..., keys, :] = torch.nan
    nan_y, nan_dq, _, _ = results()
    assert torch.equal(nan_y, y) and torch.equal(nan_dq, dq)
    nan_y, nan_dq, _, _ = results(skip_tolerance=0.0)
    assert nan_y.isnan().all() and nan_dq.isnan().all()


@pytest.mark.parametrize("causal", [True, False])
def test_distant_keys_that_matter_are_kept(causal, small_tiles):  # noqa: F811
    """A query keeps all tiles if a distant key outweighs the decay, or if it has no decay."""
    tolerance = 2.0**-24
    inputs = make_inputs("decay", 192, 192, 16, B=1, H=1)
    inputs["s"] = -torch.arange(192.0, device=DEVICE, dtype=torch.float64).expand(1, 1, -1)
    inputs["g"] = torch.ones_like(inputs["g"])
    inputs["q"], inputs["k"] = inputs["q"] * 0.1, inputs["k"] * 0.1
    before, _ = find_kept(inputs, tolerance, causal)
    assert before[0, 0, 0].tolist()[4:] == [6, 8]
    assert causal or before[1, 0, 0].tolist() == [4, 6, 8, 10, 12, 12]

    # The logit of query 150 and key 3 is 225, and the bias is -147.
    inputs["q"][..., 150, 0] = 30.0
    inputs["k"][..., 3, 0] = 25.0
    after, weight = find_kept(inputs, tolerance, causal)
    assert after[0, 0, 0, 4] == 0
    assert after[0, 0, 0, 5] == before[0, 0, 0, 5]
    assert weight.max() <= tolerance
    assert reference("decay", inputs, causal=causal)[1][..., 150, 3] > 0.999

    for name in "qk":  # a tile with NaN cannot be bounded
        broken = {**inputs, name: inputs[name].clone()}
        broken[name][..., 150, 0] = torch.nan
        kept, _ = find_kept(broken, tolerance, causal)
        assert kept[0, 0, 0, 4] == 0
        assert causal or kept[1, 0, 0, 4] == 12

    inputs["g"][..., 170] = 0.0  # this query has no decay
    after, weight = find_kept(inputs, tolerance, causal)
    assert after[0, 0, 0, 5] == 0
    assert weight.max() <= tolerance


@pytest.mark.parametrize(
    "weight, causal, tiles", [(0.9, True, 2), (1.5, True, 1), (2.1, True, 0), (0.75, False, 1)]
)
@pytest.mark.parametrize("own_logit", [4.8, -4.8])
def test_bound_is_tight(weight, causal, tiles, own_logit, small_tiles):  # noqa: F811
    """Tiles are skipped up to the tolerance, and not beyond.

    There are two flat tiles of keys on either side of 32 queries. They hold `weight` times the
    tolerance of the nearest query's row. Between them S decays so steeply that a row holds hardly
    more than its own key. Each side may use half of the tolerance. The nearest query's logit with
    its own key is own_logit; all others are 4.8.
    """
    tolerance, steep = 2.0**-10, 60.0
    decay = -np.log(weight * tolerance / 32) + 4.8 - own_logit
    middle = decay + steep * np.arange(32)
    s = -np.concatenate([np.zeros(32), middle, np.full(32, 2 * decay + steep * 31)])
    inputs = make_inputs("decay", 96, 96, 16, B=1, H=1)
    inputs["s"] = torch.from_numpy(s)[None, None].to(DEVICE)
    inputs["g"] = torch.ones(1, 1, 96, device=DEVICE)
    inputs["q"] = torch.ones(1, 1, 96, 16, dtype=torch.float64, device=DEVICE)
    inputs["k"] = inputs["q"].clone()
    inputs["k"][..., 32, :] = own_logit / 4.8
    kept, skipped_weight = find_kept(inputs, tolerance, causal)
    assert kept[:, 0, 0, 1].tolist() == [tiles, 6 - tiles][: len(kept)]
    expected = weight * tolerance * tiles / 2
    assert_close(skipped_weight[0, 0, 32].item(), expected, rtol=0.01, atol=0)
