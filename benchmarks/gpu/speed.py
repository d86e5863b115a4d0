"""Timed checks: steps beside a bare loop, what waits for data, the stall of a save, memory, torch.compile."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from benchmarks.gpu.correct import Bench
from benchmarks.gpu.outcome import Line
from benchmarks.gpu.project import timed_run
from benchmarks.gpu.sizes import Sizes, Work, peak_of
from benchmarks.gpu.turns import Program

from shardline.config.settings.config import RuntimeCheckpoint
from shardline.core.rank_environment import rank_variables

GOAL_RATE, GOAL_WAIT, GOAL_STALL = 0.97, 0.01, 0.01
_Turn = dict[str, float]


def speed(bench: Bench, name: str, sizes: Sizes) -> Iterator[Line]:
    """Steps of Shardline and of a bare loop in turns; then turns with a save."""
    work: Work = getattr(sizes, name)
    with ExitStack() as started:
        ours, bare = (
            _shardline(bench, started, name, work),
            _bare(bench, started, name, work, sizes),
        )
        for program in (ours, bare):  # what is allocated and compiled once
            program.turn(work.steps, bench.end)
        turns = [
            [one.turn(work.steps, bench.end) for one in (ours, bare)] for _ in range(sizes.rounds)
        ]
        yield from _lines_of_steps(bench, name, work, turns)
        saves = [ours.turn(work.save_steps, bench.end, save=True) for _ in range(sizes.save_rounds)]
        step_s = median(turn["seconds"] for turn, _ in turns) / work.steps
        yield _line_of_saves(bench, name, saves, step_s)


def compiled(bench: Bench, sizes: Sizes) -> Iterator[Line]:
    """The language model with compiled blocks and without, in turns."""
    plain = sizes.gpt
    faster = replace(plain, model_args={**plain.model_args, "compiled": True})
    with ExitStack() as started:
        programs = [
            _shardline(bench, started, f"compile-{'on' if work is faster else 'off'}", work)
            for work in (faster, plain)
        ]
        for program in programs:
            program.turn(plain.steps, bench.end)
        turns = [
            [one.turn(plain.steps, bench.end) for one in programs] for _ in range(sizes.rounds)
        ]
    ratio = median(off["seconds"] / on["seconds"] for on, off in turns)
    rates = [_rate(plain, [pair[number] for pair in turns]) for number in (0, 1)]
    text = f"{rates[0]:,.0f} tokens/s compiled, {rates[1]:,.0f} not: {ratio:.2f} times as fast"
    figures = {"compiled": rates[0], "plain": rates[1], "ratio": ratio}
    yield Line(name="torch.compile", state="measured", text=text, figures=figures)


def _shardline(bench: Bench, started: ExitStack, name: str, work: Work) -> Program:
    settings = {"precision": "bf16-mixed", "model_args": work.model_args}
    run = timed_run(work, bench.folder / f"timed-{name}", bench.accelerator, **settings)
    return _started(bench, started, name, run.training("timed").words)


def _bare(bench: Bench, started: ExitStack, name: str, work: Work, sizes: Sizes) -> Program:
    task: dict[str, Any] = {
        "device": "cuda" if bench.is_gpu else "cpu", "unit": work.unit, "batch": work.batch, "mixed": True,
        "options": work.options, "model_args": work.model_args, "copies": sizes.copies, "compiled": False,
    }  # fmt: skip
    path = bench.folder / f"bare-{name}.json"
    path.write_text(json.dumps(task))
    return _started(bench, started, f"bare-{name}", ["-m", "benchmarks.gpu.bare", str(path)])


def _started(bench: Bench, started: ExitStack, name: str, words: list[str]) -> Program:
    program = Program(
        words, bench.folder / f"program-{name}", rank_variables(bench.threads, {}, "")
    )
    started.callback(program.end)
    return program


def _lines_of_steps(
    bench: Bench, name: str, work: Work, turns: list[list[_Turn]]
) -> Iterator[Line]:
    ours, bare = [pair[0] for pair in turns], [pair[1] for pair in turns]
    ratio = median(other["seconds"] / own["seconds"] for own, other in turns)
    rates = [_rate(work, ours), _rate(work, bare)]
    text = f"{rates[0]:,.1f} {work.unit}/s, bare loop {rates[1]:,.1f}: {ratio:.3f}"
    figures: dict[str, Any] = {"rate": rates[0], "bare": rates[1], "ratio": ratio}
    device = torch.cuda.get_device_name() if bench.is_gpu else ""
    if work.flops and (peak := peak_of(device)):
        figures["of_peak"] = rates[0] / work.samples / work.batch * work.flops / peak
        text += f"; {figures['of_peak']:.0%} of the peak of {device}"
    yield _held(
        bench,
        f"{name} speed",
        text,
        is_met=ratio >= GOAL_RATE,
        goal=f">= {GOAL_RATE}",
        figures=figures,
    )
    wait = sum(turn["wait_s"] for turn in ours) / sum(turn["seconds"] for turn in ours)
    text = f"{wait:.2%} of a step waits for data"
    yield _held(
        bench,
        f"{name} data wait",
        text,
        is_met=wait < GOAL_WAIT,
        goal="< 1 %",
        figures={"share": wait},
    )
    yield _line_of_memory(bench, name, ours[-1], bare[-1])


def _line_of_memory(bench: Bench, name: str, ours: _Turn, bare: _Turn) -> Line:
    name = f"{name} peak memory"
    if not bench.is_gpu:
        return Line(name=name, state="not run", text="torch counts the memory of a GPU alone")
    amounts = [turn[kind] / 2**30 for turn in (ours, bare) for kind in ("allocated", "reserved")]
    text = "{:.2f} GiB allocated, {:.2f} reserved; bare loop {:.2f} and {:.2f}".format(*amounts)
    return Line(name=name, state="measured", text=text, figures={"gib": amounts})


def save_interval_s(step_s: float) -> float:
    """Return the seconds between two saves of a training with the default `runtime.checkpoint`.

    Args:
        step_s: seconds of a step.
    """
    policy = RuntimeCheckpoint()
    return min(policy.every_steps * step_s, policy.every_min * 60)


def _line_of_saves(bench: Bench, name: str, saves: list[_Turn], step_s: float) -> Line:
    stall, interval = median(turn["stall_s"] for turn in saves), save_interval_s(step_s)
    share = stall / interval
    text = (
        f"{stall * 1000:.1f} ms a save, {share:.2%} of the {interval:.0f} s between two by default"
    )
    figures = {"stall_s": stall, "interval_s": interval, "share": share}
    return _held(
        bench, f"{name} save stall", text, is_met=share < GOAL_STALL, goal="< 1 %", figures=figures
    )


def _held(
    bench: Bench, name: str, text: str, *, is_met: bool, goal: str, figures: dict[str, Any]
) -> Line:
    """Return a line with its goal; goals are a GPU's."""
    if not bench.is_gpu:
        return Line(
            name=name, state="measured", text=f"{text} (goal on a GPU: {goal})", figures=figures
        )
    return Line(
        name=name,
        state="passed" if is_met else "failed",
        text=f"{text} (goal: {goal})",
        figures=figures,
    )


def _rate(work: Work, turns: list[_Turn]) -> float:
    seconds = median(turn["seconds"] for turn in turns)
    return work.steps * work.batch * work.samples / seconds
