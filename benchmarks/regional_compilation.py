"""Compare compiling by block with compiling the full model: cold start and steps of a 12-layer transformer."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 12, 256, 4, 512, 128, 4
CONFIGS: dict[str, dict[str, Any] | None] = {"eager": None, "full model": {}, "by block": {"regional": True}}
TOOLCHAIN = "toolchain"
STARTS = (*CONFIGS, TOOLCHAIN)
ROUNDS = 15

_trainers: list[Any] = []  # that of a worker


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the compilers that it has started."""
    return sum(os.times()[:4])


def make_model(layers: int = LAYERS) -> Any:
    """Return a language model of pre-norm blocks, the same each time.

    Args:
        layers: Number of blocks.
    """
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    from composer import ComposerModel

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp_norm = nn.LayerNorm(WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            batch, length, width = x.shape
            shape = batch, length, 3, HEADS, width // HEADS
            q, k, v = self.qkv(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + self.out(mixed)
            return x + self.down(F.gelu(self.up(self.mlp_norm(x))))

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, batch: Any) -> Tensor:
            x = self.embed(batch[0]) + self.position
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

        def loss(self, outputs: Tensor, batch: Any) -> Tensor:
            return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())

    torch.manual_seed(0)
    return Model()


def start(name: str, cache: str, layers: int = LAYERS) -> float:
    """Make a trainer and train one step; return the CPU seconds from the start of the trainer.

    Args:
        name: The configuration, of :data:`CONFIGS`.
        cache: The folder of inductor's cache.
        layers: Number of blocks.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    import torch
    import torch._inductor.config as inductor

    from composer import Trainer

    inductor.compile_threads = 1  # compilers of a pool would not be counted
    tokens = torch.randint(VOCABULARY, (2, BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    model = make_model(layers)
    begin = cpu_seconds()
    trainer = Trainer(
        model=model,
        train_dataloader=[tuple(tokens)] * 1000,
        max_duration="1ba",
        optimizers=torch.optim.AdamW(model.parameters()),
        compile_config=CONFIGS[name],
        progress_bar=False,
    )
    trainer.fit()
    _trainers[:] = [trainer]
    return cpu_seconds() - begin


def start_toolchain(cache: str) -> float:
    """Compile a sum, with its backward pass; return the CPU seconds, which are those of what torch does once.

    Args:
        cache: The folder of inductor's cache.
    """
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    import torch
    import torch._inductor.config as inductor

    inductor.compile_threads = 1
    x = torch.ones(64, requires_grad=True)
    begin = cpu_seconds()
    torch.compile(lambda x: x.sin().sum())(x).backward()
    return cpu_seconds() - begin


def steps(number: int) -> float:
    """Train more steps; return CPU seconds a step.

    Args:
        number: Number of steps.
    """
    begin = time.process_time()
    _trainers[0].fit(duration=f"{number}ba")
    return (time.process_time() - begin) / number


def measure_start(name: str, folder: Path, layers: int = LAYERS) -> None:
    """Start once in a fresh process without a cache, which stays in the folder, and note the time.

    Args:
        name: The configuration.
        folder: Where records and caches are.
        layers: Number of blocks.
    """
    key = _key(name, layers)
    number = len(_records(folder, key))
    cache = folder / f"cache-{key.replace(' ', '-')}-{number}"
    if cache.exists():
        raise SystemExit(f"{cache} exists: an earlier start was interrupted; remove it.")
    target, given = "benchmarks.regional_compilation:start", {"name": name, "cache": str(cache), "layers": layers}
    if name == TOOLCHAIN:
        target, given = f"{target}_toolchain", {"cache": str(cache)}
    seconds = environment.call(target, given)
    with (folder / f"{key}.jsonl").open("a") as file:
        file.write(json.dumps({"seconds": seconds, "cache": str(cache)}) + "\n")


def measure_steps(folder: Path) -> dict[str, list[float]]:
    """Return CPU seconds a step for each configuration and round; they are timed in turn.

    Args:
        folder: Where the caches of :func:`measure_start` are.
    """
    names = list(CONFIGS)
    workers = {name: environment.Worker() for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: _warm(workers[name], name, folder), names))
        for number in range(ROUNDS):
            for name in names if number % 2 else reversed(names):
                seconds = workers[name].call("benchmarks.regional_compilation:steps", number=1)
                times[name].append(seconds)
    finally:
        for worker in workers.values():
            worker.__exit__()
    (folder / "steps.json").write_text(json.dumps(times))
    return times


def _warm(worker: environment.Worker, name: str, folder: Path) -> None:
    """Start a configuration with its cache, and train two steps."""
    cache = _records(folder, name)[0]["cache"]
    worker.call("benchmarks.regional_compilation:start", name=name, cache=cache)
    worker.call("benchmarks.regional_compilation:steps", number=1)


def report(folder: Path) -> Report:
    """Return the report of what the folder has.

    Args:
        folder: The folder.
    """
    starts = {name: [one["seconds"] for one in _records(folder, name)] for name in CONFIGS}
    times: dict[str, list[float]] = json.loads((folder / "steps.json").read_text())
    full = times["full model"]
    rows: list[list[Any]] = []
    for name in CONFIGS:
        ratio = statistics.median(value / base for value, base in zip(times[name], full, strict=True))
        median = statistics.median(starts[name])
        rows.append([name, median, len(starts[name]), statistics.median(times[name]) * 1e3, spread(times[name]) * 1e3,
                     ratio])  # fmt: skip
    eager, full_model, by_block = rows
    found = (("by block", by_block), ("the full model", full_model))
    once = statistics.median(one["seconds"] for one in _records(folder, TOOLCHAIN))
    goals = [
        Goal("cold start by block, of that of the full model", by_block[1] / full_model[1] * 100, 20, "%"),
        Goal("the same, without what torch does once", (by_block[1] - once) / (full_model[1] - once) * 100, 20, "%"),
        Goal("a step by block, over that of the full model", (by_block[5] - 1) * 100, 3, "%"),
    ]
    notes = [
        f"A language model of {LAYERS} pre-norm blocks of width {WIDTH}, batches of {BATCH} sequences of {LENGTH} "
        f"tokens, AdamW, float32, one thread. CPU seconds of the process and of the compilers that it starts.",
        "A cold start is that of a trainer with one step, in a fresh process with an empty cache, with the C++ "
        "compiler in one thread: tracing, code generation, and g++. It contains what torch does once, such as "
        f"importing its compiler and finding out which vector instructions g++ has: {once:.1f} s, the time of a "
        f"compiled sum.",
        f"Steps are those of processes that take turns, {ROUNDS} rounds of one step each; the ratio is the median "
        f"of those of the rounds.",
        *_deeper(folder),
        *(f"Compared with the eager model, compiling {name} {_break_even(eager, row)}." for name, row in found),
    ]
    columns = ["compiled", "cold start, s", "starts", "step, ms", "spread", "step, of the full model's"]
    title = "Regional compilation"
    samples = {**{f"cold start, {name}": values for name, values in starts.items()}, **times}
    return Report(
        "regional_compilation", title, columns, rows, goals, notes, samples, environment.describe(), arguments="FOLDER"
    )


def _key(name: str, layers: int) -> str:
    """Return the name of the records of a configuration with a number of blocks."""
    return name if layers == LAYERS or name == TOOLCHAIN else f"{name} {layers}"


def _deeper(folder: Path) -> list[str]:
    """Return a note for each other number of blocks whose starts the folder has, with and without what is done once."""
    once = statistics.median(one["seconds"] for one in _records(folder, TOOLCHAIN))
    found: list[str] = []
    for layers in sorted(int(path.stem.rpartition(" ")[2]) for path in folder.glob("by block *.jsonl")):
        block, full = (_records(folder, _key(name, layers)) for name in ("by block", "full model"))
        if block and full:
            short, long = (statistics.median(one["seconds"] for one in records) for records in (block, full))
            found.append(
                f"With {layers} blocks, a cold start by block takes {short:.1f} s and that of the full model "
                f"{long:.1f} s: {short / long:.0%}, without what torch does once "
                f"{(short - once) / (long - once):.0%}; {len(block)} and {len(full)} starts."
            )
    return found


def _break_even(eager: list[Any], row: list[Any]) -> str:
    """Return after how many steps a configuration pays, if its steps are faster by more than the spreads."""
    saved = (eager[3] - row[3]) / 1e3
    if saved <= max(eager[4], row[4]) / 1e3:
        return "does not make a step faster by more than the spread"
    return f"pays after {(row[1] - eager[1]) / saved:.0f} steps"


def _records(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the starts of a configuration that the folder has."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where records and caches are kept; a later command continues there")
    parser.add_argument("--part", choices=[*STARTS, "steps", "report"], help="measure only this part")
    parser.add_argument(
        "--layers", type=int, default=LAYERS, help="blocks of the model, for starts; default: %(default)s"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in STARTS if given.part is None else [given.part]:
        if name in STARTS:
            measure_start(name, folder, given.layers)
    if given.part == "steps" or (given.part is None and given.layers == LAYERS):
        measure_steps(folder)
    if given.part in (None, "report"):
        found = report(folder)
        print(found.text())
        found.write()


if __name__ == "__main__":
    main()
