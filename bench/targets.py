"""Every target that a bench is held to: name → (threshold, "min" or "max")."""

from __future__ import annotations

TARGETS: dict[str, tuple[float, str]] = {
    # training, rates as a multiple of the plain TensorFlow-1 program (interleaved)
    "train.cnn.ratio_to_plain": (1.05, "min"),
    "train.bp.ratio_to_plain": (1.20, "min"),
    # from the start of a process to its first ten steps done, beside the plain program's
    "train.start.cnn.cpu_seconds_to_plain": (1.25, "max"),
    "train.start.cnn.peak_mib_to_plain": (1.0, "max"),
    "train.start.bp.cpu_seconds_to_plain": (1.1, "max"),
    "train.start.bp.peak_mib_to_plain": (1.0, "max"),
    "train.load_seconds": (0.1, "max"),
    "train.load_peak_mib": (100.0, "max"),
    "train.save_share": (0.02, "max"),  # of the training time, at the default intervals
    # data sets: uploads over loopback and over 50 ms at 100 Mbit/s, staging at 10 ms and 1 ms
    "transfer.slow.small.share_of_line": (0.9, "min"),
    "transfer.slow.small.ratio_to_rsync": (1.0, "max"),
    "transfer.slow.small.times_put": (300.0, "min"),
    "transfer.slow.small.times_scp": (300.0, "min"),
    "transfer.loopback.small.ratio_to_tar": (1.5, "max"),
    "transfer.loopback.large.rate_to_best": (0.9, "min"),
    "transfer.loopback.unchanged.seconds": (1.5, "max"),
    "transfer.slow.unchanged.seconds": (3.0, "max"),
    "transfer.loopback.changed.packed_kib": (64.0, "max"),
    "transfer.staging.10ms.packed.times_cp": (400.0, "min"),
    "transfer.staging.10ms.packed.times_best": (6.0, "min"),
    "transfer.staging.10ms.packed.ratio_to_untar": (1.8, "max"),
    "transfer.staging.1ms.packed.times_cp": (60.0, "min"),
    "transfer.staging.10ms.foreign.times_cp": (60.0, "min"),
    "transfer.staging.10ms.large.times_cp": (5.0, "min"),
    "transfer.plan.first.seconds": (60.0, "max"),
    "transfer.plan.peak_mib": (1024.0, "max"),
    # accuracy on MNIST's test images, the worst of three seeds
    "accuracy.bp.30000": (0.953, "min"),
    "accuracy.cnn.2000": (0.975, "min"),
    "accuracy.cnn.20000": (0.992, "min"),
    # a deploy and a status where nothing has changed, after connecting
    "deploy.warm_requests": (2, "max"),
    "deploy.warm_line_round_trips": (4.0, "max"),
    "deploy.warm_over_program_seconds": (1.5, "max"),
    "status.requests": (1, "max"),
    "status.line_round_trips": (1.5, "max"),  # one, and what the clock is unsure of
    # 100 boxes, 50 ms to each: `fab status` as a whole, with its start
    "fleet.seconds": (5.0, "max"),
    "fleet.peak_mib": (100.0, "max"),
    # the keeper: errors over random days, and what it costs itself at a look every 15 s
    "keeper.stopped_at_work": (0.0, "max"),
    "keeper.left_idle": (0.0, "max"),
    "keeper.over_cap": (0.0, "max"),
    "keeper.memory_mib": (25.0, "max"),
    "keeper.share_of_a_core": (0.001, "max"),
    # images: bytes as the engine counts them, seconds on two idle cores
    "images.cpu.bytes": (1.0e9, "max"),
    "images.gpu.bytes": (5.3e9, "max"),
    "images.rebuild_seconds": (2.0, "max"),  # a changed workload
    "images.import_seconds": (3.0, "max"),  # tensorflow, in a new container
    "images.ship.changed.bytes_ratio": (1.1, "max"),  # sent, of the changed layers
    "images.ship.workload.bytes_ratio": (1.1, "max"),  # the same where only the workload changed
    "images.ship.workload.ratio_to_save": (1.0, "max"),  # `docker save` of the same image alone
}


def shortfalls(figures: dict[str, float]) -> list[str]:
    """One line for each figure that misses its target; figures without a target are free."""
    missed = []
    for name, value in figures.items():
        if name in TARGETS:
            threshold, direction = TARGETS[name]
            if not (value >= threshold if direction == "min" else value <= threshold):
                word = "at least" if direction == "min" else "at most"
                missed.append(f"{name}: {value:.4g}, wanted {word} {threshold:g}")
    return missed
