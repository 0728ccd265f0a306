"""The tree of one episode: frames, their cells, their sub-calls, and what was counted.

Plain logic over REPLs, without OpenEnv (`environment.py` adapts it to the wire) and without the
reward (`rewards/rubrics.py` scores what is counted here). A frame whose code makes sub-calls
stays suspended inside its sandbox until all children have ended.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from env import embedding, prompts
from env.errors import RefusedError, SandboxError
from env.models import (
    BUSY,
    Counters,
    FrameKind,
    FrameState,
    FrameTurn,
    FrameView,
    JSONValue,
    Message,
    StopReason,
)
from env.ranking import MOST_ORDERED
from env.server.sandbox import MAX_ANSWER, UNSET, CellDone, Repl, SandboxHost, SubCall
from env.server.tree.budget import TokenBudget, needed
from env.server.tree.frame import Frame, PendingCalls, as_context, context_chars, held_bytes
from env.server.tree.turn import parse
from env.settings import CHILD_CONTEXT_CHARS, PROMPT_CHARS, EnvSettings

TEXT_BYTES = 16 << 20
"""Limit of the texts of one episode that the server keeps for its score.

Contexts of 31 children need 12 MB: 200,000 characters each, of two bytes.
"""
RANKED = 600_000
"""Tokens that the calls of `rank` of one episode may order, which takes three minutes of a core
where no vector is known. A single call has fewer."""
CALL_TOKENS = 64
"""Tokens that a call of `rank` costs besides, since even known vectors must be compared."""
EPISODE_S = 120.0
"""CPU seconds of all cells of one episode."""
STEP_S = 400.0
"""Seconds of one step, after which the episode is void: below the 600 s that a client waits, and
above what its cells and its ranking may take, so only a machine that is too busy gets there."""
_USED_UP = "the texts of this episode are used up"


class Tree:
    """One episode.

    Args:
        settings: prompt style and limits.
        repls: host that opens a REPL at a frame's first cell.
        question: question for the root.
        papers: paper_id -> text, the root's `context`.
        shared_as: name under which other episodes use the same papers.

    Raises:
        RefusedError: the budget is too small for one turn.
    Raises (every method that plays):
        SandboxError: the sandbox failed; the caller voids the episode.
    """

    def __init__(
        self,
        settings: EnvSettings,
        repls: SandboxHost,
        question: str,
        papers: Mapping[str, str],
        shared_as: str | None = None,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._repls = repls
        self.papers = dict(papers)
        self._shared_as = shared_as
        self.void: str | None = None
        self.shown: list[str] = []
        """Texts that the policy saw: observations, and prompts of children."""
        self.failed_turns = 0
        """Turns that the server itself saw fail; a worker runs model code and can fake errors."""
        self._counts: Counter[str] = Counter()
        self._cpu_s = 0.0
        self._env_s = 0.0
        self._ranked = 0
        self._deadline = 0.0
        """When the step in progress is too late."""
        self._running: Repl | None = None
        self._stopped = False
        self.held_bytes = 0
        """Bytes of texts that were kept so far."""
        self._frames: list[Frame] = []
        self._ended: list[Frame] = []
        limit = self._limits.tree_tokens
        self._budget = TokenBudget(limit)
        first = prompts.root_messages(settings, question, len(papers))
        if self._budget.lacks(first):
            raise RefusedError(
                f"a budget of {limit} tokens is too small for one turn: this question needs "
                f"{needed(first)}. Raise env.limits.tree_tokens"
            )
        self._add(None, "rlm", question, self.papers, first)
        self._opening_tokens = self._budget.counted

    # --- views of the tree

    @property
    def done(self) -> bool:
        """Whether the root has ended or the episode is void."""
        return self._frames[0].status == "ended"

    @property
    def answered(self) -> bool:
        """Whether the root gave a final answer."""
        return self._frames[0].stop_reason == "final"

    @property
    def answer(self) -> JSONValue:
        """The root's final answer; None without one."""
        return self._frames[0].answer

    @property
    def counters(self) -> Counters:
        """Counts over the whole tree, so far."""
        return Counters(
            frames=len(self._frames),
            max_depth=max(frame.depth for frame in self._frames),
            tokens=self._budget.spent,
            env_s=round(self._env_s, 6),
            **self._counts,
        )

    def states(self) -> list[FrameState]:
        """The tree without texts."""
        return [FrameState(turns=frame.turns, **frame.place) for frame in self._frames]

    @property
    def tokens(self) -> int:
        """Tokens of all frames by the server's own count, without the root's first messages."""
        return self._budget.counted - self._opening_tokens

    @property
    def children(self) -> list[Frame]:
        """All frames but the root."""
        return self._frames[1:]

    def views(self) -> list[FrameView]:
        """Frames that need the policy, and frames that ended since the last call."""
        shown = [*self._ended, *(frame for frame in self._frames if frame.status == "ready")]
        self._ended = []
        views = []
        for frame in sorted(shown, key=lambda frame: frame.number):
            views.append(FrameView(messages=frame.unsent, **frame.place))
            frame.unsent = []
        return views

    # --- playing

    def first_ready(self) -> int:
        """Number of the first frame that needs the policy.

        Raises:
            RefusedError: no frame is ready.
        """
        for frame in self._frames:
            if frame.status == "ready":
                return frame.number
        raise RefusedError("no frame is ready")

    def play(self, turns: Sequence[FrameTurn]) -> None:
        """Play one turn of each named frame, in the given order.

        Raises:
            RefusedError: a frame is named twice, is unknown, or is not ready.
        """
        if len({turn.frame for turn in turns}) < len(turns):
            raise RefusedError("a frame is named twice in one action")
        for turn in turns:
            if turn.frame >= len(self._frames):
                raise RefusedError(f"this episode has no frame {turn.frame}")
            if (status := self._frames[turn.frame].status) != "ready":
                raise RefusedError(f"frame {turn.frame} is not ready: {status}")
        started = time.monotonic()
        self._deadline = started + STEP_S
        try:
            if any(turn.finish == "error" for turn in turns):
                self.end_void("the policy failed")
            for turn in turns:
                frame = self._frames[turn.frame]
                if not self.done and frame.status == "ready" and not self._late(frame):
                    self._turn(frame, turn)
        finally:
            self._env_s += time.monotonic() - started

    def end_void(self, reason: str, culprit: Frame | None = None) -> None:
        """End the episode as void: it gets no reward.

        Args:
            reason: sentence for the client.
            culprit: frame whose cell a clock ended; its stop reason is `timeout`.
        """
        self.void = reason
        self._end_all("error", culprit)

    def forget(self) -> None:
        """Drop all texts of an episode that has ended and was scored."""
        self.papers, self.shown = {}, []
        for frame in self._frames:
            frame.context = frame.answer = None
            frame.prompt = ""

    def stop(self) -> None:
        """End the step in progress soon, with a SandboxError; any thread may call this."""
        self._stopped = True
        if self._running is not None:
            self._running.close()

    def close(self) -> None:
        """Free every sandbox process."""
        for frame in self._frames:
            self._release(frame)

    # --- one turn

    def _turn(self, frame: Frame, turn: FrameTurn) -> None:
        frame.turns += 1
        self._counts["turns"] += 1
        self._budget.write(turn)
        if self._overspent():
            return
        if frame.kind == "llm":
            # The parent gets the text even if it was cut.
            text = turn.text[: self._answer_chars(frame)]
            whole = turn.finish != "length" and len(text) == len(turn.text)
            self._end(frame, "final" if whole else "truncated", text)
            return
        frame.failed, frame.seen_to_fail, frame.output = False, False, []
        if turn.finish == "length":
            self._fail(frame, malformed=True)
            self._end(frame, "truncated")
            return
        parsed = parse(turn.text)
        frame.final_code, frame.final_text = parsed.final_code, parsed.final_text
        most = self._answer_chars(frame)
        line = parsed.final_code
        if line is not None and (
            len(line) > most + len("FINAL()") or not self._hold(line, parsed.final_text)
        ):
            frame.final_code = f'raise ValueError("FINAL: too large: at most {most:,} characters")'
            frame.final_text = None
        if not parsed.well_formed:
            self._fail(frame, malformed=True)
            frame.output.append(prompts.blocks_message(parsed.opened))
            self._observe(frame)
            return
        if parsed.blocks:
            code = parsed.blocks[0]
        else:
            code, frame.final_code = str(frame.final_code), None
        self._advance(frame, self._run(frame, code))

    def _run(self, frame: Frame, code: str) -> CellDone | SubCall:
        """Run a cell of the frame; open the frame's REPL if it has none."""
        if frame.repl is None:
            shared_as = self._shared_as if frame.parent is None else None
            most = self._answer_chars(frame)
            frame.repl = self._repls.open(
                frame.context, shared_as, question=frame.prompt, session=self, answer_chars=most
            )
        return self._living(frame).run(code)

    def _living(self, frame: Frame) -> Repl:
        """The REPL of a frame, which runs next.

        Raises:
            SandboxError: `stop` was called.
        """
        assert frame.repl is not None
        self._running = frame.repl
        frame.repl.tokens_left = self._budget.left
        if self._stopped:  # after the line above: `stop` sees the REPL, or this sees `stop`
            raise SandboxError("the session was closed")
        return frame.repl

    def _answer_chars(self, frame: Frame) -> int:
        """Limit of characters of a frame's answer."""
        return MAX_ANSWER if frame.parent is None else min(MAX_ANSWER, CHILD_CONTEXT_CHARS)

    def _advance(self, frame: Frame, event: CellDone | SubCall) -> None:
        """Continue until the frame waits for children, needs the policy, or has ended.

        Args:
            frame: a frame with a REPL, in the middle of its turn.
            event: what its REPL just returned.
        """
        while True:
            # Step 1, a sub-call: open children and wait for them. If limits refuse all of them,
            # the cell resumes at once with the refusals as values. A cell that goes on calling
            # when the calls of the episode are used up is stopped, at the price of a whole cell.
            if isinstance(event, SubCall) and event.fn == "rank":
                event = self._living(frame).resume(self._ordered(*event.prompts))
                continue
            if isinstance(event, SubCall):
                self._counts["sub_calls"] += len(event.prompts)
                if self._counts["sub_calls"] > self._limits.sub_calls:
                    self._release(frame)
                    cost_s = self._limits.cell_cpu_s
                    event = CellDone("", "calls", variables_lost=True, cpu_s=cost_s)
                    continue
                calls = self._open_children(frame, event)
                if calls.waiting:
                    frame.calls, frame.status = calls, "waiting"
                    return
                event = self._living(frame).resume(calls.result)
                continue
            # Step 2, the end of a cell: a FINAL ends the frame. A plain FINAL line that is not
            # Python is an answer, too: its text.
            self._cpu_s += event.cpu_s
            text = frame.final_text if frame.final_code is None else None
            if event.final is not UNSET:
                self._end(frame, "final", event.final)
                return
            if text is not None and event.error in ("exception", "syntax"):
                self._end(frame, "final", text)
                return
            # Step 3: a cell that the machine held up voids the episode; used-up seconds end it.
            if event.error == "starved":
                self.end_void(BUSY, frame)
                return
            frame.output.append(self._describe(frame, event))
            if self._cpu_s > EPISODE_S:
                self._end_all("budget", culprit=frame)
            if self.done or self._late(frame):
                return
            # Step 4: a plain FINAL line after the block is the next cell of the same turn.
            # Without one, the turn is over.
            if frame.final_code is None:
                self._observe(frame)
                return
            code, frame.final_code = frame.final_code, None
            event = self._run(frame, code)

    def _ordered(self, question: str, *passages: str) -> JSONValue:
        """The order of a call of `rank`; a sentence where the episode may not have it."""

        def spend(tokens: int) -> None:
            self._ranked += tokens
            if self._stopped:
                raise SandboxError("the session was closed")
            if self._ranked > RANKED or time.monotonic() > self._deadline:
                raise RefusedError

        try:
            honest = self._settings.rank == "minilm" and 0 < len(passages) <= MOST_ORDERED
            if not honest:
                raise RefusedError
            spend(CALL_TOKENS)
            return embedding.embedder().order(question, passages, spend)
        except RefusedError:
            return f"this episode has ranked too much (at most {RANKED:,} tokens)"

    def _late(self, frame: Frame) -> bool:
        """Whether the step has taken too long; then the machine is too busy for the episode."""
        if time.monotonic() <= self._deadline:
            return False
        self.end_void(BUSY, frame)
        return True

    def _overspent(self) -> bool:
        """Whether the budget in tokens is exceeded; then the episode ends, and it is scored."""
        if self._budget.overspent:
            self._end_all("overspent")
        return self._budget.overspent

    def _describe(self, frame: Frame, cell: CellDone) -> str:
        """The policy's observation of a cell; counts its error."""
        problem = ""
        overran = cell.cpu_s >= self._limits.cell_cpu_s
        if cell.error is not None or overran:
            self._fail(frame, seen=overran)
        if cell.error is not None:
            if cell.error in ("cpu", "wall"):
                self._counts["timeouts"] += 1
            if cell.error == "syntax":
                problem = prompts.syntax_message(cell.traceback)
            elif cell.error == "exception":
                problem = cell.traceback.rstrip("\n")
            else:
                problem = prompts.stopped_message(cell.error, self._limits, cell.variables_lost)
        return prompts.cell_message(cell.stdout, cell.cut, cell.new_names, problem, self._limits)

    def _hold(self, *values: JSONValue) -> bool:
        """Count texts that are kept until the end; False, without counting, if they are too many.

        Nothing is given back before the end, so the sum bounds what the server holds.
        """
        size = sum(map(held_bytes, values))
        if self.held_bytes + size > TEXT_BYTES:
            return False
        self.held_bytes += size
        return True

    def _observe(self, frame: Frame) -> None:
        """Give the turn's observation to the policy, or end a frame without turns left."""
        if frame.turns >= self._limits.max_turns:
            self._end(frame, "max_turns")
            return
        text = "\n".join(frame.output)
        if not self._hold(text):
            self._end_all("budget", culprit=frame)
            return
        message = Message(role="user", content=text)
        self._budget.read(frame.number, [message])
        if self._overspent():
            return
        self.shown.append(text)
        frame.unsent.append(message)
        frame.status = "ready"

    def _fail(self, frame: Frame, malformed: bool = False, seen: bool = True) -> None:
        """Count the frame's turn as an error once; `seen`: the server need not take its word."""
        if not frame.failed:
            frame.failed = True
            self._counts["errors"] += 1
        if seen and not frame.seen_to_fail:
            frame.seen_to_fail = True
            self.failed_turns += 1
        if malformed:
            self._counts["format_errors"] += 1

    # --- children

    def _add(
        self,
        parent: Frame | None,
        kind: FrameKind,
        prompt: str,
        context: JSONValue,
        messages: list[Message],
    ) -> Frame:
        frame = Frame(
            number=len(self._frames),
            parent=None if parent is None else parent.number,
            depth=0 if parent is None else parent.depth + 1,
            kind=kind,
            context=context,
            unsent=messages,
            prompt=prompt,
        )
        self._frames.append(frame)
        self._budget.read(frame.number, messages)
        return frame

    def _open_children(self, frame: Frame, call: SubCall) -> PendingCalls:
        """Open a frame for each prompt; a slot beyond a limit gets a sentence as its value."""
        calls = PendingCalls(
            batched=call.fn.endswith("_batched"), values=[None] * len(call.prompts), waiting={}
        )
        contexts = call.contexts or [None] * len(call.prompts)
        kind: FrameKind = "llm" if call.fn.startswith("llm") else "rlm"
        for slot, (prompt, given) in enumerate(zip(call.prompts, contexts, strict=False)):
            refusal = self._refusal(kind, slot, prompt, given, frame.depth)
            context = None if refusal else as_context(given)
            if given is not None and context is None and not refusal:
                refusal = "a context is a string or a dict of strings"
            messages = [] if refusal else self._first_messages(kind, prompt, context)
            refusal = refusal or self._budget.lacks(messages)
            if not refusal and not self._hold(prompt, context):
                refusal = _USED_UP
            if refusal:
                calls.values[slot] = f"error: {refusal}"
                continue
            self.shown.append(prompt)
            child = self._add(frame, kind, prompt, None if kind == "llm" else context, messages)
            calls.waiting[child.number] = slot
        return calls

    def _refusal(
        self, kind: FrameKind, slot: int, prompt: str, given: JSONValue, depth: int
    ) -> str | None:
        """Reason why a sub-call is refused, by its place in its batch; None if it is allowed."""
        limits = self._limits
        if kind == "rlm" and depth >= limits.max_depth:
            return f"no sub-calls below depth {limits.max_depth}; answer from this part yourself"
        if slot >= limits.max_children:
            return f"at most {limits.max_children} sub-calls at once"
        if len(self._frames) >= limits.max_frames:
            return f"the {limits.max_frames} frames of this episode are used up"
        if len(prompt) > PROMPT_CHARS:
            return f"the prompt is longer than {PROMPT_CHARS} characters; hand text as context"
        if context_chars(given) > CHILD_CONTEXT_CHARS:
            return f"the context is longer than {CHILD_CONTEXT_CHARS} characters"
        return None

    def _first_messages(self, kind: FrameKind, prompt: str, context: JSONValue) -> list[Message]:
        if kind == "llm":
            return prompts.llm_messages(self._settings.prompt_style, prompt)
        return prompts.child_messages(self._settings, prompt, context)

    # --- ends

    def _end(self, frame: Frame, reason: StopReason, answer: JSONValue = None) -> None:
        """End a frame; its parent continues once all of its children have ended."""
        room = frame.parent is None or self._hold(answer)
        if not room:
            reason, answer = "budget", None
        self._stop(frame, reason)
        frame.answer = answer
        if frame.parent is None:
            self._end_all("budget")
            return
        parent = self._frames[frame.parent]
        calls = parent.calls
        if calls is None or parent.repl is None:
            return
        slot = calls.waiting.pop(frame.number)
        calls.values[slot] = f"error: the sub-call ended without FINAL ({reason})"
        if reason == "final" or (frame.kind == "llm" and room):
            calls.values[slot] = answer
        if not calls.waiting:
            parent.calls = None
            self._advance(parent, self._living(parent).resume(calls.result))

    def _end_all(self, reason: StopReason, culprit: Frame | None = None) -> None:
        """End all remaining frames; the culprit's stop reason is `timeout`."""
        for frame in self._frames:
            if frame.status != "ended":
                self._stop(frame, "timeout" if frame is culprit else reason)

    def _stop(self, frame: Frame, reason: StopReason) -> None:
        frame.status, frame.stop_reason = "ended", reason
        frame.unsent, frame.calls, frame.output = [], None, []
        frame.final_code = frame.final_text = None
        self._ended.append(frame)
        self._release(frame)

    def _release(self, frame: Frame) -> None:
        repl, frame.repl = frame.repl, None
        if repl is not None:
            repl.close()
