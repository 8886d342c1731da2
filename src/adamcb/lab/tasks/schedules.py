"""How the learning rate changes over a run, as a factor of the learning rate that was asked for."""

from __future__ import annotations

import math

# Part of the steps in which one-cycle rises, in which the others warm up, and in which warmup-stable-decay decays.
ONE_CYCLE_RISE, WARMUP, DECAY = 0.3, 0.05, 0.2
ONE_CYCLE_START, ONE_CYCLE_END = 1 / 25, 1 / 250_000


def constant(steps_done: int, total_steps: int) -> float:
    """Return 1."""
    return 1.0


def inverse_sqrt(steps_done: int, total_steps: int) -> float:
    """Return 1/√t for step t."""
    return (steps_done + 1) ** -0.5


def cosine(steps_done: float, total_steps: float) -> float:
    """Return half a cosine wave, from 1 to 0 after the last step."""
    return 0.5 * (1.0 + math.cos(math.pi * steps_done / total_steps))


def warmup_cosine(steps_done: int, total_steps: int) -> float:
    """Return a linear rise in the first 5 % of the steps, and half a cosine wave down to 0 in the rest."""
    warmup = WARMUP * total_steps
    if steps_done + 1 <= warmup:
        return (steps_done + 1) / warmup
    return cosine(steps_done - warmup, total_steps - warmup) if steps_done > warmup else 1.0


def one_cycle(steps_done: int, total_steps: int) -> float:
    """Return torch's OneCycleLR: a cosine rise from 1/25 in the first 30 % of the steps, and a cosine fall to 4e-6."""
    peak = ONE_CYCLE_RISE * total_steps - 1.0
    if steps_done <= peak:
        return _between(ONE_CYCLE_START, 1.0, steps_done / peak)
    return _between(1.0, ONE_CYCLE_END, (steps_done - peak) / (total_steps - 1 - peak))


def warmup_stable_decay(steps_done: int, total_steps: int) -> float:
    """Return a linear rise in the first 5 % of the steps, 1, and a linear fall to 0 in the last 20 %."""
    rise = (steps_done + 1) / max(1.0, WARMUP * total_steps)
    fall = (total_steps - steps_done) / max(1.0, DECAY * total_steps)
    return min(1.0, rise, fall)


def _between(start: float, end: float, share: float) -> float:
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * share))


SCHEDULES = {
    "constant": constant,
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "warmup-cosine": warmup_cosine,
    "one-cycle": one_cycle,
    "warmup-stable-decay": warmup_stable_decay,
}
