from __future__ import annotations

from xml.etree import ElementTree

from peer.profile.profile_words import memory_picture, profile_lines
from peer.training.profiling.profile_summary import Kernel, MemoryPart, ProfileSummary

SUMMARY = ProfileSummary(
    request="r",
    device="cuda:0",
    plan="RTX 3090, 24 GB: bf16, compiled",
    num_steps=5,
    tokens=40_000,
    wall_s=2.0,
    kernel_s=1.8,
    product_s=1.2,
    flops_per_token=10**9,
    peak_flops=71e12,
    kernels=(Kernel(name="gemm<" + "x" * 90, calls=10, total_s=0.9), Kernel(name="aten::mul", calls=5, total_s=0.1)),
    memory=(
        MemoryPart(kind="parameters", num_bytes=10**9, place="card"),
        MemoryPart(kind="activations", num_bytes=4 * 10**9, place="card", is_measured=True),
    ),
)


def test_a_profile_is_told_with_what_limits_it() -> None:
    text = "\n".join(profile_lines(SUMMARY))
    for words in (
        "20,000 tokens/s",
        "20 TFLOP/s",
        "28.2% of the device's peak",
        "arithmetic limits",
        "4.0 GB",
        "measured",
    ):
        assert words in text
    assert max(map(len, profile_lines(SUMMARY))) < 130


def test_a_peak_that_is_not_known_and_a_profile_that_is_none_are_told() -> None:
    assert any("peak is not known" in line for line in profile_lines(SUMMARY.model_copy(update={"peak_flops": None})))
    assert profile_lines(ProfileSummary(request="r", problem="paused")) == ["no profile: paused"]


def test_the_picture_has_a_bar_for_each_kind_of_memory() -> None:
    root = ElementTree.fromstring(memory_picture(SUMMARY))
    bars = [float(part.attrib["width"]) for part in root if part.tag.endswith("rect")][1:]
    assert bars[1] == 4 * bars[0]
    ElementTree.fromstring(memory_picture(ProfileSummary(request="r")))
