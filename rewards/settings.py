"""Settings of the reward: the section `rewards` of params.yaml."""

from __future__ import annotations

from math import isclose

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Base of all sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


class WeightSettings(Settings):
    """Weights of the four components; they sum to 1."""

    primary_objective: float = Field(0.40, ge=0, le=1)
    process_quality: float = Field(0.25, ge=0, le=1)
    format_compliance: float = Field(0.20, ge=0, le=1)
    efficiency: float = Field(0.15, ge=0, le=1)

    @model_validator(mode="after")
    def _sum_to_one(self) -> WeightSettings:
        total = sum(self.model_dump().values())
        if not isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(f"the four weights must sum to 1, they sum to {total:g}")
        return self


class RewardSettings(Settings):
    """What worlds and collections need otherwise; other constants are beside their code."""

    weights: WeightSettings = WeightSettings()
    min_span_chars: int = Field(12, ge=1, le=1000)
    """Shorter spans are ignored."""
    min_cover: float = Field(0.95, gt=0, le=1)
    """Share of an alternative that one item must cover to count."""
    overshoot_slope: float = Field(0.75, gt=0)
    """Of the factor clip(1.25 - slope wrong/W, 0, 1)."""
    max_items: int = Field(2000, ge=1)
    """Distinct items of an answer; an answer with more earns nothing."""
    free_misses: int = Field(8, ge=0)
    """Quotes found in no paper that are free; further ones are wrong."""
    read_chars: int = Field(200, ge=1)
    """Contiguous characters that count as reading."""
    par_base: int = Field(3, ge=0)
    """Par = base + 3 (gold papers + 1)."""


def reward_metric(score: str) -> str:
    """The metric of a score: `reward/primary` of `primary_objective`, `reward/overall` of `reward`.

    Args:
        score: a component's name, or `reward`.
    """
    return "reward/overall" if score == "reward" else f"reward/{score.partition('_')[0]}"
