from __future__ import annotations

import pytest

from peer.training.profiling.kernels_core import kind_of, limit_words, longest, seconds_of
from peer.training.profiling.profile_summary import NUM_KERNELS, Kernel, ProfileSummary


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::mm", "product"),
        ("aten::addmm", "product"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "product"),
        ("nvjet_tst_128x256_64x4", "product"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("pytorch_flash::flash_fwd_kernel", "attention"),
        ("Memcpy DtoH (Device -> Pinned)", "copy"),
        ("aten::copy_", "copy"),
        ("aten::mul", "other"),
        ("triton_poi_fused_add_0", "other"),
        ("aten::mm_like", "other"),
    ],
)
def test_kernels_are_known_by_their_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_longest_kernels_come_first_and_are_few() -> None:
    kernels = [Kernel(name=f"k{number}", calls=1, total_s=float(number)) for number in range(30)]
    assert [kernel.name for kernel in longest(kernels)][:2] == ["k29", "k28"]
    assert len(longest(kernels)) == NUM_KERNELS
    assert seconds_of([*kernels, Kernel(name="aten::mm", calls=1, total_s=7.0)], "product") == 7.0


@pytest.mark.parametrize(
    ("kernel_s", "product_s", "copy_s", "words"),
    [
        (0.5, 0.4, 0.0, "the device waits 50% of the time"),
        (1.0, 0.6, 0.1, "the device's arithmetic limits"),
        (1.0, 0.2, 0.6, "copies take 60%"),
        (1.0, 0.2, 0.1, "the device's memory limits"),
        (3.0, 2.0, 0.1, "the device's arithmetic limits"),
    ],
)
def test_what_limits_follows_from_the_shares(kernel_s: float, product_s: float, copy_s: float, words: str) -> None:
    summary = ProfileSummary(
        request="r", num_steps=1, tokens=10, wall_s=1.0, kernel_s=kernel_s, product_s=product_s, copy_s=copy_s
    )
    assert words in limit_words(summary)


def test_without_a_step_nothing_is_said() -> None:
    assert limit_words(ProfileSummary(request="r")) == ""
