from __future__ import annotations

import pytest

from peer.training.plan.card_plan import Precision
from peer.training.plan.cards_core import Card
from peer.training.plan.speed_core import _PEAKS, peak_flops, utilisation


@pytest.mark.parametrize(
    ("name", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.0),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "bf16", 835.0),
        ("NVIDIA H200", "bf16", 989.0),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 3090", "fp16", 71.0),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16", 80.0),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "bf16", 88.2),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA L4", "bf16", 121.0),
        ("NVIDIA L40S", "bf16", 362.0),
        ("Tesla T4", "fp16", 65.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-PCIE-32GB", "fp16", 112.0),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI250X/MI250", "bf16", 191.5),
        ("AMD Radeon RX 7900 XTX", "bf16", 122.8),
    ],
)
def test_the_peak_of_a_known_card_is_its_makers(name: str, precision: Precision, tera: float) -> None:
    assert peak_flops(Card("cuda", name, 1 << 34), precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 2080 with Max-Q Design",
        "NVIDIA GeForce RTX 9990",
        "NVIDIA GeForce GTX 1080",
        "Apple M3 Max",
        "x86_64",
        "",
    ],
)
def test_no_peak_is_guessed(name: str) -> None:
    assert peak_flops(Card("cuda", name, 1 << 34), "bf16") is None


def test_a_type_that_the_card_has_no_hardware_for_has_no_peak() -> None:
    assert peak_flops(Card("cuda", "Tesla T4", 1 << 34), "bf16") is None


def test_the_utilisation_is_a_share_of_the_peak_and_unknown_without_one() -> None:
    assert utilisation(271_000, 6 * 136_000_000, 989e12) == pytest.approx(0.2236, abs=1e-4)
    assert utilisation(271_000, 6 * 136_000_000, None) is None
    assert utilisation(0.0, 6 * 136_000_000, 989e12) is None


@pytest.mark.parametrize(
    ("names", "multiple"),
    [
        (("RTX 20",), 4),
        (("RTX 30", "RTX 40", "RTX 50"), 2),
        (("RTX A", "RTX 6000 ADA", "RTX 5000 ADA", "RTX 4000 ADA"), 4),
        (("QUADRO", "TITAN RTX"), 8),
    ],
    ids=["GeForce Turing", "GeForce from Ampere on", "professional from Ampere on", "professional Turing"],
)
def test_tensor_cores_do_a_fixed_multiple_of_float32_in_each_family(names: tuple[str, ...], multiple: int) -> None:
    others = {name for name in _PEAKS if name.endswith(" ADA")}
    family = [name for name in _PEAKS if name.startswith(names) and (name not in others or name in names)]
    assert len(family) >= 3
    for name in family:
        assert (_PEAKS[name].fp16 or 0.0) / _PEAKS[name].fp32 == pytest.approx(multiple, rel=0.01), name
