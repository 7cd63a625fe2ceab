"""Where the time of a step goes: a trace of some batches."""

import json
from pathlib import Path

from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from composer import Trainer
from composer.models import mnist_model
from composer.profiler import JSONTraceHandler, cyclic_schedule
from composer.profiler.profiler import Profiler

train_dataset = datasets.MNIST("data", train=True, transform=transforms.ToTensor())
eval_dataset = datasets.MNIST("data", train=False, transform=transforms.ToTensor())

composer_trace_dir = "composer_profiler"
torch_trace_dir = "torch_profiler"
trainer = Trainer(
    model=mnist_model(num_classes=10),
    train_dataloader=DataLoader(train_dataset, batch_size=32),
    eval_dataloader=DataLoader(eval_dataset, batch_size=32),
    max_duration=1,
    train_subset_num_batches=8,
    eval_interval=0,
    device="cpu",
    profiler=Profiler(
        trace_handlers=[JSONTraceHandler(folder=composer_trace_dir, overwrite=True)],
        schedule=cyclic_schedule(wait=0, warmup=1, active=2, repeat=1),
        torch_prof_folder=torch_trace_dir,
        torch_prof_overwrite=True,
    ),
)
trainer.fit()
trainer.close()

events = json.loads((Path(composer_trace_dir) / "merged_trace.json").read_text())
assert any("batch" in str(event.get("name")) for event in events)
assert list(Path(torch_trace_dir).glob("*.pt.trace.json"))
