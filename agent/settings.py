"""Settings of the agent side: how a policy samples, and how GRPO trains it on trees."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from env.settings import Settings

NANO = "nano"
"""Source of the model that this project builds itself (`agent/nano`)."""
PACKAGE = "package:"
"""Start of a `model.source` that names an installed package."""

LEAST_PROBLEMS = 200
"""Least pairs of episodes of a promotion; with fewer, the interval proves nothing."""
LEAST_COLLECTIONS = 30
"""Least collections that the pairs come from, since the bootstrap resamples collections.

Of two equal models, one wins a set with probability 0.005 on many collections, 0.016 on 16 and
0.08 on 4.
"""


TemplateArguments = dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], bool | int | float | str]
"""Arguments of a chat template, such as `{"enable_thinking": False}`."""


class GenerationSettings(Settings):
    """Sampling of a turn."""

    temperature: float = Field(1.0, ge=0, le=2)
    """0 is greedy."""
    max_turn_tokens: int = Field(96, ge=8, le=8192)
    """New tokens of one turn."""
    max_frame_tokens: int = Field(512, ge=64)
    """Tokens of one frame's conversation."""
    batch_frames: int = Field(256, ge=1, le=4096)
    """Frames decoded together, and episodes that stages without gradients play."""
    cache_tokens: int = Field(262_144, ge=0)
    """Tokens of open frames whose keys and values stay between turns."""

    SIZES: ClassVar = {"batch_frames", "cache_tokens"}
    """Depend on the machine, and decide no turn."""

    @property
    def greedy(self) -> GenerationSettings:
        """The same sampling at temperature 0."""
        return self.model_copy(update={"temperature": 0.0})


class ModelSettings(Settings):
    """The base of `warmstart.kind: none`, `sft` and `auto`; see `agent/models/base_model.py`."""

    source: str = Field(NANO, min_length=1)
    """`nano`; a model's name on the Hub; package:NAME, an installed package with one GGUF file; or
    a folder.
    """
    revision: str | None = None
    """Commit, tag or branch of the model on the Hub."""
    backend: Literal["transformers", "unsloth"] = "transformers"
    """Library that trains the adapter of `warmstart.kind: sft`; unsloth needs a GPU."""
    quantisation: Literal["none", "nf4"] = "none"
    """Format of the base's weights: `none` keeps 16 bits, `nf4` stores 4."""
    template: str = Field("own", min_length=1)
    """Chat template; own: the tokenizer's, training: TRL's that keeps earlier turns, else the path
    of a file.
    """
    template_kwargs: TemplateArguments = {}
    """Fixed arguments of the template."""


class LoraSettings(Settings):
    """The adapter that GRPO trains.

    It has no dropout, which would make the trainer's log-probabilities differ from the rollout's.
    """

    r: int = Field(16, ge=1, le=256)
    alpha: ClassVar[int] = 16
    targets: list[str] = Field(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], min_length=1
    )
    """Names of the linear layers that get an adapter."""


def refuse_password(url: str) -> str:
    """The address, unless it has a password: addresses are shown, logged and recorded.

    Raises:
        ValueError: it has one; the message does not repeat it.
    """
    if "@" in url:
        raise ValueError("an address has no user and no password. Put the key into OPENAI_API_KEY.")
    return url


Address = Annotated[str, AfterValidator(refuse_password)]


Reads = Literal["nobody", "readers", "children"]
"""Who reads what a root finds: nobody, readers of single passages, or a child for each paper."""


class MovesSettings(Settings):
    """What the demonstrations of `plan: moves` draw from, each decision evenly and by itself."""

    question: str = "How does {intervention} compare with {comparator} in its effect on {outcome}?"
    """Form of every question, with its parts in braces."""
    parts: list[list[str]] = Field(
        [
            *(["intervention"], ["comparator"], ["outcome"], ["intervention", "comparator"]),
            *(["intervention", "outcome"], ["comparator", "outcome"]),
            ["intervention", "comparator", "outcome"],
        ],
        min_length=1,
    )
    """Parts of the question that make the query."""
    words: list[Annotated[str, Field(pattern="^[a-z0-9]+$")]] = []
    """Further words of a query."""
    word_counts: list[int] = Field([0], min_length=1)
    """Further words of one query."""
    quoted: list[int] = Field([1, 2, 3, 5, 8], min_length=1)
    """Passages of an answer, at most."""
    paper_first: float = Field(0.5, ge=0, le=1)
    """Share that searches one paper only."""
    near: float = Field(0.0, ge=0, le=1)
    """Share that drops what's far from the best."""
    reads: dict[Reads, float] = Field({"nobody": 1.0}, min_length=1)
    """Who reads, and how often."""
    readers: list[int] = Field([8], min_length=1)
    """Passages that readers see."""
    children: list[int] = Field([2], min_length=1)
    """Passages whose papers get a child."""

    lesson_passages: int = Field(0, ge=0, le=64)
    """Passages of each shown problem's paper that readers are taught beside moves."""

    @property
    def most_frames(self) -> int:
        """Frames of an episode, at most: the root, its children, and the readers of each."""
        children = max(self.children) if self.reads.get("children") else 0
        readers = max(self.readers) if self.reads.get("readers") else 0
        return 1 + children + max(1, children) * readers

    @model_validator(mode="after")
    def _names_its_parts(self) -> MovesSettings:
        named = set(re.findall(r"\{(\w+)\}", self.question))
        if unknown := sorted({name for some in self.parts for name in some} - named):
            raise ValueError(f"parts: {unknown[0]!r} is no part of the question {self.question!r}")
        if max(self.word_counts) > len(self.words):
            raise ValueError(
                f"word_counts: {max(self.word_counts)} is more than the words, {len(self.words)}"
            )
        return self


class SftSettings(Settings):
    """Supervised training of an adapter on demonstrations; `train` has the adapter and limits."""

    teacher: Literal["demonstrator", "endpoint"] = "demonstrator"
    """A script that knows the gold, or a model behind an API."""
    base_url: Address | None = None
    """Endpoint; its key is OPENAI_API_KEY."""
    model: str | None = None
    """Name of the model at the endpoint."""
    problems: int = Field(600, ge=1)
    """Training problems, evenly of all levels."""
    plan: Literal["keyed", "moves"] = "keyed"
    """What is shown: readers that name ranked passages, or moves drawn at random."""
    moves: MovesSettings = MovesSettings()
    near_chars: int | None = Field(None, ge=0)
    """Widest gap in an answer; null: any."""
    min_reward: float = Field(0.7, ge=0, le=1)
    """Least reward of an episode that is kept."""
    epochs: int = Field(2, ge=1)
    learning_rate: float = Field(2e-4, gt=0)
    batch_tokens: int = Field(16_384, ge=128)
    """Tokens of an optimizer step, counted as in train.micro_batch_tokens."""
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _has_an_address(self) -> SftSettings:
        if self.teacher == "endpoint" and not (self.base_url and self.model):
            raise ValueError("teacher: endpoint needs base_url and model. Set both.")
        return self


class CurriculumSettings(Settings):
    """Difficulty of the problems that a step plays; see The curriculum in docs/design.md."""

    mode: Literal["auto", "always", "off"] = "always"
    """`auto`: start at the target, fall back; `always`: start easy; `off`: the target."""
    levels: list[str] = ["easy", "medium", "hard"]
    target: str = "hard"
    unlock_above: float = Field(0.3, ge=0, le=1)
    window: int = Field(4, ge=1)
    """Steps the metric is averaged over."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` as false


class TrainSettings(Settings):
    """GRPO."""

    lora: LoraSettings = LoraSettings()
    steps: int = Field(24, ge=1)
    problems_per_step: int = Field(8, ge=1)
    """Groups per step."""
    group_size: int = Field(8, ge=2)
    """Episodes of one problem."""
    learning_rate: float = Field(0.004, gt=0)
    """After the warm-up; it falls to 0."""
    warmup_steps: int = Field(5, ge=0)
    max_step_kl: float = Field(0.01, gt=0)
    """Nats per token; longer steps are halved."""
    inheritance: Literal["inverse_count", "none"] = "inverse_count"
    """A child has the advantage of its root, divided; none: only roots are trained."""
    scale_rewards: Literal["batch", "group", "none"] = "batch"
    """Scope of the standard deviation that advantages are divided by."""
    min_group_std: float = Field(0.02, ge=0)
    """Least deviation of a group that has a signal."""
    resample_groups: int = Field(1, ge=0, le=16)
    """Rounds that replace groups without a signal; 0 = off."""
    processes: int = Field(2, ge=1, le=64)
    """Processes of this machine that share a step's groups."""
    micro_batch_tokens: int = Field(512, ge=1)
    """Tokens of one forward and backward pass: on a CPU those of the rows' prefix tree (512 is best
    for nano, 1024 for SmolLM2-135M; attention grows with the square), on a GPU with padding.
    """
    gradient_checkpointing: bool = False
    """Recompute activations to save memory."""
    save_every: int = Field(5, ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    curriculum: CurriculumSettings = CurriculumSettings()
    report_to: list[str] = []
    """Loggers of the Trainer: `wandb`, `tensorboard`."""
    seed: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _each_process_has_a_group(self) -> TrainSettings:
        if self.processes > self.problems_per_step:
            raise ValueError(
                f"processes {self.processes} exceeds problems_per_step {self.problems_per_step} "
                "(each process plays whole groups). Lower it."
            )
        return self
