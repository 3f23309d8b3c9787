"""Profile of a training step."""

import json

import pytest

from benchmarking import kernel_times


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
