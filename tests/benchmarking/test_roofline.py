"""Roofline of a training step, and the profile that is compared with it."""

import json

import pytest
from conftest import ROOT

from benchmarking import kernel_times, roofline
from errors import InputError


def test_roofline_follows_its_formulas():
    """Computed again here for small: 12 layers, width 768, 32 x 1,024 tokens."""
    work = {item.part: item for item in roofline.step_work("small", "rope", 32)}
    N, C, V, T = 32 * 1024, 768, 50304, 1024
    products = work["blocks: matrix products"]
    assert products.flops == 6 * 12 * (12 * C * C) * N  # 12 C^2 weights in each of 12 layers
    assert products.milliseconds() == pytest.approx(1000 * products.flops / 989e12)
    # 4 T C FLOPs forward and 10 T C backward, of which causal attention needs half.
    assert work["attention"].flops == 12 * N * (4 + 10) * T * C / 2
    assert work["loss: softmax"].milliseconds() == pytest.approx(1000 * 6 * N * V / 3.35e12)
    cable = {item.part: item for item in roofline.step_work("small", "cable", 32)}
    assert cable["attention"].flops == work["attention"].flops * 72 / 64
    groups = roofline.group_milliseconds("small", "rope", 32, roofline.Config())
    whole = sum(roofline.attainable(item, roofline.Config()) for item in work.values())
    assert sum(groups.values()) == pytest.approx(whole)


def test_performance_page_has_the_table_of_the_roofline():
    page = (ROOT / "docs" / "performance.md").read_text()
    assert "\n".join(roofline.table(roofline.Config())) in page
    with pytest.raises(InputError, match="memory is 1.5"):
        roofline.Config(memory=1.5)


def test_kernels_are_grouped_by_name():
    names = {
        "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>": "attention",
        "attention_backward_rows": "attention",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNN": "products",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn": "products",
        "triton_poi_fused_gelu_3": "elementwise",
        "multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer",
        "Memcpy DtoD": "other",
    }
    assert {name: kernel_times.kernel_group(name) for name in names} == names


def test_kernel_times_of_a_training_step(tmp_path):
    out = tmp_path / "trace.json"
    flags = "--model quickstart --micro_batch 1 --context 16 --device cpu --out"
    kernel_times.main([*flags.split(), str(out)])
    record = json.loads(out.read_text())
    times = [kernel["ms"] for kernel in record["kernels"]]
    assert len(times) <= 30 and times == sorted(times, reverse=True)
    assert sum(times) <= record["busy_ms"] == pytest.approx(sum(record["groups_ms"].values()))
    assert record["groups_ms"]["products"] > 0 and record["groups_ms"]["attention"] > 0
