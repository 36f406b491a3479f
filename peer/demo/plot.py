"""The loss curve as a PNG. The only importer of matplotlib, and only when it draws."""

from __future__ import annotations

import math
from pathlib import Path

from peer.demo.observation import Observation
from protocol.errors import StorageError


def plot_losses(seen: Observation, path: Path, *, title: str) -> None:
    """Draw training and held-out loss in bits per byte over committed tokens, beside zlib and the pair model.

    Raises:
        StorageError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    host = seen.host
    if host is not None and host.train_loss:
        millions = [point.tokens / 1e6 for point in host.train_loss]
        axes.plot(millions, [_bits(point.nats) for point in host.train_loss], color="#9bb7d4", label="training")
    points = [seen.heldout[index] for index in sorted(seen.heldout)]
    if points:
        millions = [point.tokens / 1e6 for point in points]
        axes.plot(
            millions, [_bits(point.nats) for point in points], "o-", color="#1f5fa8", markersize=4, label="held-out"
        )
    if host is not None and host.yardsticks is not None:
        pairs, zlib = _bits(host.yardsticks.pairs_nats_per_byte), host.yardsticks.zlib_bits_per_byte
        axes.axhline(pairs, color="#b5651d", linestyle="--", label=f"pair-frequency model {pairs:.2f}")
        axes.axhline(zlib, color="#777777", linestyle=":", label=f"zlib {zlib:.2f}")
    axes.set(xlabel="committed tokens (millions)", ylabel="bits per byte", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise StorageError(
            f"cannot write {path} ({error.strerror})", "a writable place", "give another with --plot"
        ) from error


def _bits(nats: float) -> float:
    return nats / math.log(2.0)
