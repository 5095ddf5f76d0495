"""Distills SmolLM2-135M to few levels in minutes of one GPU, and evaluates what came out.

python distill.py MODEL TOKENS.safetensors OUT --seconds 500

TOKENS is what `data.py` wrote. The teacher adds text of its own (`writing.py`); processes of one
machine, each with its own students and GPU, may share what their teachers write. Then each student
is trained for its share of the time, by forward KL alone, with the parts of `tercet distill`: the
same swap, the same codes, the same loss, the same checkpoint. What differs is the clock: the
learning rate falls to 0 with the time that is left, not with a number of steps, and a whole step is
one CUDA graph. Under torchrun all train one student, and share its evaluation.

Records go to OUT/records.jsonl, curves to OUT/curve.jsonl, packed checkpoints to OUT/<student>,
and each score to OUT/scores.jsonl as soon as it is known.
"""

import argparse
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from journal import Journal
from quality import WINDOW, divergence, perplexity
from reading import Batches, Shares, Texts, pools_of
from recipe import RECIPES, Recipe
from safetensors.torch import load_file
from tasks import scores
from torch import Tensor
from training import Training
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from writing import END, LENGTH, Openings, Text, shared, written

from tercet.checkpoints.packed.layout import SourceInfo
from tercet.checkpoints.packed.read import open_packed
from tercet.checkpoints.packed.write import PackedWriter, RunIdentity, library_versions
from tercet.checkpoints.sources.open import ModelSource, open_source
from tercet.compress.qat.student import Student
from tercet.compress.qat.swap import refresh, swap
from tercet.compress.qat.write import units_of, write_student
from tercet.compress.skeleton import Skeleton
from tercet.compress.training.group import Group, open_group
from tercet.evaluate.size import measure_size
from tercet.records import Environment, Record, append

WINDOWS, DIVERGENCE_WINDOWS = 40, 10
WIKITEXT = "wikitext2"
EVALUATIONS = ("hellaswag", WIKITEXT, "arc_easy", "lambada", "piqa")
"""Dealt out to processes in this order: the first take longest."""


def model_of(skeleton: Skeleton, device: torch.device, dtype: torch.dtype, random: bool) -> Any:
    """The model with its weights, or with random ones."""
    for name in [name for name, _ in skeleton.model.named_parameters()]:
        shape = skeleton.model.get_parameter(name).shape
        value = torch.randn(shape) * 0.05 if random else skeleton.read(name)
        skeleton.put(name, value.to(device, dtype))
    # while a graph is recorded, transformers writes causal masks out, and SDPA is slow with one
    AttentionInterface.register("causal", ALL_ATTENTION_FUNCTIONS["sdpa"])
    skeleton.model.config._attn_implementation = "causal"
    return skeleton.model.to(device)


class Bench:
    """Teacher, data and clock, shared by all students."""

    def __init__(self, arguments: argparse.Namespace, group: Group) -> None:
        self.arguments, self.group, self.device = arguments, group, group.device
        self.out = Path(arguments.out)
        self.out.mkdir(parents=True, exist_ok=True)
        file = self.out / "curve.jsonl" if group.first else None
        self.journal = Journal(file, arguments.began)
        self.say, self.clock = self.journal.say, self.journal.seconds
        self.scores = Journal(self.out / "scores.jsonl", arguments.began)
        self.source: ModelSource = open_source(arguments.model)
        self.tensors = load_file(arguments.tokens)
        test = self.tensors["wikitext2_test"].int().long()
        windows = test[: len(test) // WINDOW * WINDOW].view(-1, WINDOW).to(self.device)
        self.windows = windows if arguments.limit is None else windows[: arguments.limit]
        self.exact = self._teacher(torch.float32)
        self.teacher = self._teacher(torch.bfloat16)
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else None
        self.environment = Environment.here(name)
        self.say("ready", device=str(self.device), windows=len(self.windows))

    def _teacher(self, dtype: torch.dtype) -> Student:
        random = self.arguments.random
        torch.manual_seed(0)
        model = model_of(Skeleton(self.source), self.device, dtype, random)
        return Student(model.eval(), {}, dtype)

    def compile(self) -> None:
        """Compiles the teacher."""
        if self.arguments.compile:
            # each student needs its own graphs, where they are not the same as another's
            torch._dynamo.config.recompile_limit = 64
            self.teacher.compile()
        self.say("compile", compile=self.arguments.compile)

    def texts(self) -> Texts:
        """What there is to read."""
        train = self._tokens("train")
        wikitext = int((train == END).nonzero()[0])
        end = train.new_tensor([END])
        ends = torch.cat([self._tokens("line_ends"), end])
        whole = (train[:wikitext], train[wikitext + 1 :], self._tokens("tales"))
        given = [_text(ids, ends) for ids in whole]
        asked = _text(self._tokens("asked"), end) if "asked" in self.tensors else None
        own: list[Tensor] = []
        if self.arguments.generate:
            torch.compiler.set_stance("force_eager")
            own = attempt(lambda: self._written(given)) or []
            torch.compiler.set_stance("default")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        texts = Texts(given=given, asked=asked, written=own)
        self.say("texts", tokens=texts.sizes())
        return texts

    def _tokens(self, name: str) -> Tensor:
        return self.tensors[name].int().to(self.device)

    def _own(self, name: str) -> Any:
        """This process's value of an option that has one for each process."""
        values = getattr(self.arguments, name)
        return values[self.group.rank % len(values)]

    def _written(self, texts: list[Text]) -> list[Tensor]:
        """What this process's teacher and others' wrote; names of students give the seed."""
        arguments, name = self.arguments, f"{self.arguments.students}.{self.group.rank}"
        vocabulary = int(self.teacher.config.vocab_size)
        own = written(
            self.teacher,
            Openings(self._tokens("openings"), texts, vocabulary),
            tokens=arguments.generate,
            length=min(LENGTH, self._own("length")),
            seconds=arguments.write_seconds,
            batch=arguments.generate_batch,
            seed=zlib.crc32(name.encode()),
        )
        self.say("wrote", tokens=own.numel())
        writers = arguments.writers or self.group.world_size
        folder = arguments.texts or self.out.parent / "texts"
        return shared(own, folder, name, writers, patience_s=25)

    def evaluate(self, student: Student) -> dict[str, float]:
        """Everything that a record holds, each process its part of it."""
        torch.compiler.set_stance("force_eager")
        metrics: dict[str, float] = {}
        for name in EVALUATIONS[self.group.rank :: self.group.world_size]:
            if name == WIKITEXT:
                found = self._wikitext(student)
            elif self.arguments.tasks:
                found = self._task(student, name)
            else:
                continue
            self.scores.say(name, student=bool(student.quantized), **found)
            metrics |= found
        torch.compiler.set_stance("default")
        if self.group.mesh is None:
            return metrics
        parts: list[Any] = [None] * self.group.world_size
        dist.all_gather_object(parts, metrics)
        return {name: value for part in parts for name, value in part.items()}

    def _task(self, student: Student, task: str) -> dict[str, float]:
        with torch.autocast(self.device.type, torch.bfloat16):
            found = scores(
                student.hidden,
                student.head().detach(),
                self.tensors,
                task,
                questions=self.arguments.questions,
            )
        return {f"{task}_{name}": value for name, value in found.items()}

    def _wikitext(self, student: Student) -> dict[str, float]:
        """In float32."""
        if student.quantized:
            self._precision(student, torch.float32)
        found = {
            "perplexity": perplexity(student, self.windows[:WINDOWS]),
            "perplexity_whole": perplexity(student, self.windows),
            **divergence(student, self.exact, self.windows[:DIVERGENCE_WINDOWS]),
        }
        if student.quantized:
            self._precision(student, torch.bfloat16)
        return found

    @staticmethod
    def _precision(student: Student, dtype: torch.dtype) -> None:
        student.dtype = dtype
        for module in student.quantized.values():
            module.dtype = dtype
        refresh(student.quantized)

    def record(self, subject: str, metrics: dict[str, float], **settings: Any) -> None:
        """Appends a record, and says it."""
        self.say("evaluated", subject=subject, **{k: round(v, 5) for k, v in metrics.items()})
        record = Record(
            kind="distillation",
            subject=subject,
            settings={"windows": len(self.windows), **settings},
            metrics=metrics,
            environment=self.environment,
        )
        append(self.out / "records.jsonl", [record])

    def train(self, recipe: Recipe, texts: Texts, until: float) -> tuple[Student, Skeleton]:
        """A student that has trained until so many seconds of the clock."""
        arguments, group, skeleton = self.arguments, self.group, Skeleton(self.source)
        torch.manual_seed(0)
        model = model_of(skeleton, self.device, torch.float32, arguments.random)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        student = Student(model.train(), swap(model, recipe.plan(), torch.bfloat16), torch.bfloat16)
        if arguments.compile:
            student.compile()
        length = self._own("length")
        shares = Shares(own=self._own("own_share"), asked=self._own("asked_share"))
        count = arguments.batch_tokens // length
        ids = torch.zeros(count, length, dtype=torch.int64, device=self.device)
        training = Training(
            student,
            self.teacher,
            recipe,
            Batches(pools_of(texts, shares, length), group.rank),
            ids,
            group=group,
            journal=self.journal,
            glance=self._glance,
        )
        training.run(until, arguments.steps)
        self.tokens = training.tokens
        return student, skeleton

    def _glance(self, student: Student) -> float:
        torch.compiler.set_stance("force_eager")
        refresh(student.quantized)
        with torch.autocast(self.device.type, torch.bfloat16):
            found = perplexity(student, self.windows[:WINDOWS])
        torch.compiler.set_stance("default")
        return found

    def measure_teacher(self) -> None:
        """Its record: last, when students have theirs."""
        metrics = self.evaluate(self.exact)
        if self.group.first:
            self.record("teacher", metrics)

    def write(self, recipe: Recipe, student: Student, skeleton: Skeleton) -> dict[str, float]:
        """The packed checkpoint; its size."""
        source = self.source
        identity = RunIdentity(
            source=SourceInfo(
                reference=source.reference, sha256=source.sha256(), size_bytes=source.size_bytes,
                parameters=source.parameter_count,
            ),
            calibration=None,
            plan=recipe.plan().model_dump(mode="json", exclude={"calibration"}),
            versions=library_versions(),
            units=units_of(skeleton),
        )  # fmt: skip
        directory = self.out / recipe.name
        writer = PackedWriter(directory, identity, overwrite=True)
        source.save_companions(writer.partial)
        write_student(skeleton, student, recipe.plan(), writer)
        return measure_size(open_packed(directory)).metrics()

    def student(self, recipe: Recipe, texts: Texts, until: float) -> None:
        """Trains and evaluates; the first process writes and records."""
        begin = self.clock()
        student, skeleton = self.train(recipe, texts, until)
        seconds = self.clock() - begin
        metrics = self.evaluate(student)
        if not self.group.first:
            return
        student.model.eval()
        size = attempt(lambda: self.write(recipe, student, skeleton)) or {}
        arguments, ranks = self.arguments, self.group.world_size
        about = {
            "body": recipe.body, "embedding": recipe.embedding, "method": recipe.method,
            "rate": recipe.rate, "tokens": self.tokens, "train_seconds": round(seconds, 1),
            "batch_tokens": arguments.batch_tokens * ranks, "gpus": ranks,
            "text_tokens": sum(texts.sizes()),
            "own_tokens": sum(text.numel() for text in texts.written),
            "lengths": "+".join(map(str, arguments.length)),
            "own_shares": "+".join(map(str, arguments.own_share)),
            "asked_shares": "+".join(map(str, arguments.asked_share)), "fall": recipe.fall,
        }  # fmt: skip
        self.record(recipe.name, metrics | size, **about)


def _text(ids: Tensor, ends: Tensor) -> Text:
    """A text whose documents or paragraphs end with one of those tokens."""
    over = torch.isin(ids, ends)
    return Text(ids=ids, starts=(over[:-1] & ~over[1:]).nonzero()[:, 0] + 1)


def attempt(action: Callable[[], Any]) -> Any:
    """What it returns, or None where it fails, which is told."""
    try:
        return action()
    except Exception:  # noqa: BLE001  one student's failure is not the others'
        traceback.print_exc()
        return None


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("tokens", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500, help="until everything is over")
    parser.add_argument(
        "--began", type=float, help="when they began, by the Unix clock: before Python was there"
    )
    parser.add_argument("--batch-tokens", type=int, default=16384, help="of a step and process")
    parser.add_argument(
        "--length", type=int, nargs="+", default=[1024], help="of windows, of each process"
    )
    parser.add_argument(
        "--own-share", type=float, nargs="+", default=[0.45], help="of windows, teachers' text"
    )
    parser.add_argument(
        "--asked-share", type=float, nargs="+", default=[0.0], help="of windows, questions"
    )
    parser.add_argument("--generate", type=int, default=4_000_000, help="tokens by the teacher")
    parser.add_argument("--write-seconds", type=float, default=60, help="for them, at most")
    parser.add_argument(
        "--writers", type=int, help="processes that share them; those of torchrun, if not said"
    )
    parser.add_argument("--texts", type=Path, help="where they are shared; beside OUT, if not said")
    parser.add_argument("--generate-batch", type=int, default=8192)
    parser.add_argument("--reserve", type=float, default=20, help="seconds of evaluation a student")
    parser.add_argument("--students", default=",".join(recipe.name for recipe in RECIPES))
    parser.add_argument("--steps", type=int, default=0, help="at most so many, for a trial")
    parser.add_argument("--questions", type=int, default=3000, help="of a task, at most")
    parser.add_argument("--no-teacher", dest="measure_teacher", action="store_false")
    parser.add_argument("--limit", type=int, help="windows of evaluation, for a trial")
    parser.add_argument("--random", action="store_true", help="random weights, for a trial")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-tasks", dest="tasks", action="store_false")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    with open_group(None) as group:
        bench = Bench(arguments, group)
        wanted = arguments.students.split(",")
        recipes = [recipe for recipe in RECIPES if recipe.name in wanted]
        texts = bench.texts()
        bench.compile()
        for index, recipe in enumerate(recipes):
            left = recipes[index:]
            spare = arguments.seconds - bench.clock() - arguments.reserve * len(left)
            until = bench.clock() + spare * recipe.share / sum(one.share for one in left)
            if group.world_size > 1:
                # the others would wait for one that gave up: torchrun ends them all
                bench.student(recipe, texts, until)
            else:
                attempt(lambda recipe=recipe, until=until: bench.student(recipe, texts, until))
        if arguments.measure_teacher:
            bench.measure_teacher()
        bench.say("over")


if __name__ == "__main__":
    main()
