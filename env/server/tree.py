"""The tree of one episode: frames, their cells, their sub-calls, and what was counted.

Plain logic over REPLs: no OpenEnv here (`environment.py` adapts it to the wire) and no reward
(`rewards/rubrics.py` scores the facts that are counted here). A frame whose code asks for
sub-calls stays suspended inside its sandbox until each of its children has ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from env import prompts
from env.errors import RefusedError
from env.models import (
    Counters,
    FrameKind,
    FrameState,
    FrameTurn,
    FrameView,
    JSONValue,
    Message,
    StopReason,
)
from env.server.clockless import clockless
from env.server.frame import Calls, Frame, as_context, texts_of
from env.server.sandbox import UNSET, CellDone, OpenRepl, SubCall
from env.server.turn import parse
from env.settings import EnvSettings, LimitSettings

_CALLS_PER_FRAME = 32
"""Times `max_frames`: sub-calls, refused ones included, beyond which an episode is cut; the frame
with most of them is to blame. A refused one costs a cell nothing and the server a round trip."""


class ReplOpener(Protocol):
    """Where REPLs come from: a backend of the sandbox."""

    def open(self, context: JSONValue, shared_as: str | None = None) -> OpenRepl:
        """A fresh REPL whose variable `context` holds the value; one name, one value."""
        ...


class Tree:
    """One episode.

    Args:
        settings: prompt style and limits.
        repls: where REPLs come from; one is opened at a frame's first cell.
        question: what the root is asked.
        papers: paper_id -> text, the root's `context`.
        hint: the question carries a hint.
        shared_as: a name under which other episodes have the same papers.

    Raises (every method that plays):
        SandboxError: the sandbox broke; the caller voids the episode.
    """

    def __init__(
        self,
        settings: EnvSettings,
        repls: ReplOpener,
        question: str,
        papers: Mapping[str, str],
        hint: bool = False,
        shared_as: str | None = None,
    ) -> None:
        self._settings = settings
        self._limits: LimitSettings = settings.limits
        self._repls = repls
        self.papers = dict(papers)
        self._shared_as = shared_as
        self.void: str | None = None
        self.shown: list[str] = []
        """Texts the policy saw or handed on: observations, prompts and contexts of children."""
        self._counts: dict[str, int] = dict.fromkeys(
            ("turns", "sub_calls", "errors", "timeouts", "format_errors"), 0
        )
        self._cpu_s = 0.0
        self._env_s = 0.0
        self._frames: list[Frame] = []
        self._ended: list[Frame] = []
        first = prompts.root_messages(
            settings.prompt_style, self._limits, settings.search_window, question, len(papers), hint
        )
        self._add(None, "rlm", self.papers, first)

    # --- what can be seen

    @property
    def done(self) -> bool:
        """The root has ended, or the episode is void."""
        return self._frames[0].status == "ended"

    @property
    def answered(self) -> bool:
        """The root gave a final answer."""
        return self._frames[0].stop_reason == "final"

    @property
    def answer(self) -> JSONValue:
        """The root's final answer; None without one."""
        return self._frames[0].answer

    @property
    def counters(self) -> Counters:
        """Counted so far over the whole tree."""
        return Counters(
            frames=len(self._frames),
            max_depth=max(frame.depth for frame in self._frames),
            env_s=round(self._env_s, 6),
            **self._counts,
        )

    def states(self) -> list[FrameState]:
        """The tree without texts."""
        return [
            FrameState(
                frame=frame.number,
                parent=frame.parent,
                depth=frame.depth,
                kind=frame.kind,
                turns=frame.turns,
                status=frame.status,
                stop_reason=frame.stop_reason,
            )
            for frame in self._frames
        ]

    def child_answers(self) -> Iterator[tuple[int, JSONValue, JSONValue]]:
        """(frame, context, answer) of every child with a REPL that ended by `final`."""
        for frame in self._frames[1:]:
            if frame.kind == "rlm" and frame.stop_reason == "final":
                yield frame.number, frame.context, frame.answer

    def views(self) -> list[FrameView]:
        """Frames that need the policy, and those that ended since the last call."""
        shown = [*self._ended, *(frame for frame in self._frames if frame.status == "ready")]
        self._ended = []
        views = []
        for frame in sorted(shown, key=lambda frame: frame.number):
            views.append(
                FrameView(
                    frame=frame.number,
                    parent=frame.parent,
                    depth=frame.depth,
                    kind=frame.kind,
                    messages=frame.unsent,
                    status=frame.status,
                    stop_reason=frame.stop_reason,
                )
            )
            frame.unsent = []
        return views

    # --- playing

    def first_ready(self) -> int:
        """Number of the first frame that needs the policy.

        Raises:
            RefusedError: no frame does.
        """
        for frame in self._frames:
            if frame.status == "ready":
                return frame.number
        raise RefusedError("no frame is ready")

    def play(self, turns: Sequence[FrameTurn]) -> None:
        """Play one turn of each named frame, in the order given.

        Raises:
            RefusedError: a frame is named twice, is unknown, or is not ready.
        """
        if len({turn.frame for turn in turns}) < len(turns):
            raise RefusedError("a frame is named twice in one action")
        for turn in turns:
            if turn.frame >= len(self._frames):
                raise RefusedError(f"there is no frame {turn.frame}")
            if (status := self._frames[turn.frame].status) != "ready":
                raise RefusedError(f"frame {turn.frame} is not ready: {status}")
        started = time.monotonic()
        try:
            if any(turn.finish == "error" for turn in turns):
                self.end_void("the policy failed")
            for turn in turns:
                if not self.done and self._frames[turn.frame].status == "ready":
                    self._turn(self._frames[turn.frame], turn)
        finally:
            self._env_s += time.monotonic() - started

    def end_void(self, reason: str) -> None:
        """End the episode as void: it counts for nothing."""
        self.void = reason
        self._end_all("error")

    def close(self) -> None:
        """Free every sandbox process."""
        for frame in self._frames:
            self._release(frame)

    # --- one turn

    def _turn(self, frame: Frame, turn: FrameTurn) -> None:
        frame.turns += 1
        self._counts["turns"] += 1
        if frame.kind == "llm":
            # Text that was cut is still text: the parent gets it either way.
            self._end(frame, "truncated" if turn.finish == "length" else "final", turn.text)
            return
        frame.failed, frame.output = False, []
        if turn.finish == "length":
            self._fail(frame, malformed=True)
            self._end(frame, "truncated")
            return
        parsed = parse(turn.text)
        frame.final_code, frame.final_text = parsed.final_code, parsed.final_text
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
        """Run a cell of the frame, in a new REPL if there is none."""
        if frame.repl is None:
            shared_as = self._shared_as if frame.parent is None else None
            frame.repl = self._repls.open(frame.context, shared_as)
        frame.called = False
        return frame.repl.run(code)

    def _advance(self, frame: Frame, event: CellDone | SubCall) -> None:
        """Go on until the frame waits for children, needs the policy, or has ended."""
        while True:
            if isinstance(event, SubCall):
                assert frame.repl is not None
                frame.called = True
                frame.asked += len(event.prompts)
                self._counts["sub_calls"] += len(event.prompts)
                if self._counts["sub_calls"] > _CALLS_PER_FRAME * self._limits.max_frames:
                    culprit = max(self._frames, key=lambda frame: frame.asked)
                    self._fail(culprit)
                    self._end_all("budget", culprit)
                    return
                calls = self._open_children(frame, event)
                if calls.waiting:
                    frame.calls, frame.status = calls, "waiting"
                    return
                event = frame.repl.resume(calls.result)
                continue
            if self._settings.deterministic:
                verdict = clockless(event, self._limits.cell_cpu_s, frame.called)
                if isinstance(verdict, str):
                    self.end_void(verdict)
                    return
                if verdict.variables_lost:
                    self._release(frame)
                event = verdict
            self._cpu_s += event.cpu_s
            if event.final is not UNSET:
                self._end(frame, "final", event.final)
                return
            last_cell = frame.final_code is None
            if (
                last_cell
                and frame.final_text is not None
                and event.error in ("exception", "syntax")
            ):
                self._end(frame, "final", frame.final_text)
                return
            if event.error == "wall" and event.cpu_s < self._limits.cell_cpu_s:
                self.end_void("the machine was too busy to run a cell")
                return
            frame.output.append(self._describe(frame, event))
            if self._cpu_s > self._limits.episode_s:
                self._end_all("budget", culprit=frame)
                return
            if last_cell:
                self._observe(frame)
                return
            code, frame.final_code = str(frame.final_code), None
            event = self._run(frame, code)

    def _describe(self, frame: Frame, cell: CellDone) -> str:
        """What the policy reads of a cell; counts what went wrong."""
        problem = ""
        if cell.error is not None:
            self._fail(frame)
            if cell.error in ("cpu", "wall"):
                self._counts["timeouts"] += 1
            if cell.error == "syntax":
                problem = prompts.syntax_message(cell.traceback)
            elif cell.error == "exception":
                problem = cell.traceback.rstrip("\n")
            else:
                problem = prompts.stopped_message(cell.error, self._limits, cell.variables_lost)
        return prompts.cell_message(cell.stdout, cell.cut, cell.new_names, problem, self._limits)

    def _observe(self, frame: Frame) -> None:
        """Hand the turn's observation to the policy, or end a frame without turns left."""
        text = "\n".join(frame.output)
        if frame.turns >= self._limits.max_turns:
            self._end(frame, "max_turns")
            return
        self.shown.append(text)
        frame.unsent.append(Message(role="user", content=text))
        frame.status = "ready"

    def _fail(self, frame: Frame, malformed: bool = False) -> None:
        if not frame.failed:
            frame.failed = True
            self._counts["errors"] += 1
        if malformed:
            self._counts["format_errors"] += 1

    # --- children

    def _add(
        self, parent: Frame | None, kind: FrameKind, context: JSONValue, messages: list[Message]
    ) -> Frame:
        frame = Frame(
            number=len(self._frames),
            parent=None if parent is None else parent.number,
            depth=0 if parent is None else parent.depth + 1,
            kind=kind,
            context=context,
            unsent=messages,
        )
        self._frames.append(frame)
        return frame

    def _open_children(self, frame: Frame, call: SubCall) -> Calls:
        """Open a frame for each prompt; a limit that bites answers its slot with a sentence."""
        calls = Calls(
            batched=call.fn.endswith("_batched"), values=[None] * len(call.prompts), waiting={}
        )
        contexts = call.contexts or [None] * len(call.prompts)
        for slot, (prompt, given) in enumerate(zip(call.prompts, contexts, strict=False)):
            context = as_context(given)
            refusal = self._limit_on(frame, call.fn, slot, prompt, given, context)
            if refusal:
                calls.values[slot] = f"error: {refusal}"
                continue
            self.shown.append(prompt)
            if call.fn.startswith("llm"):
                messages = prompts.llm_messages(self._settings.prompt_style, prompt)
                child = self._add(frame, "llm", None, messages)
            else:
                self.shown.extend(texts_of(context))
                messages = prompts.child_messages(
                    self._settings.prompt_style,
                    self._limits,
                    self._settings.search_window,
                    prompt,
                    context,
                )
                child = self._add(frame, "rlm", context, messages)
            calls.waiting[child.number] = slot
        return calls

    def _limit_on(
        self, frame: Frame, fn: str, slot: int, prompt: str, given: JSONValue, context: JSONValue
    ) -> str | None:
        """Why a sub-call cannot be made; None when it can."""
        limits = self._limits
        if fn.startswith("rlm") and frame.depth >= limits.max_depth:
            return f"no sub-calls below depth {limits.max_depth}; answer from this part yourself"
        if slot >= limits.max_children:
            return f"at most {limits.max_children} sub-calls at once"
        if len(self._frames) >= limits.max_frames:
            return f"the {limits.max_frames} frames of this episode are used up"
        if len(prompt) > limits.prompt_chars:
            return (
                f"the prompt is longer than {limits.prompt_chars} characters; hand text as context"
            )
        if given is not None and context is None:
            return "a context is a string or a dict of strings"
        if sum(map(len, texts_of(context))) > limits.child_context_chars:
            return f"the context is longer than {limits.child_context_chars} characters"
        return None

    # --- ends

    def _end(self, frame: Frame, reason: StopReason, answer: JSONValue = None) -> None:
        """End a frame; a parent none of whose children is left goes on."""
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
        if reason == "final" or frame.kind == "llm":
            calls.values[slot] = answer
        else:
            calls.values[slot] = f"error: the sub-call ended without FINAL ({reason})"
        if not calls.waiting:
            parent.calls = None
            self._advance(parent, parent.repl.resume(calls.result))

    def _end_all(self, reason: StopReason, culprit: Frame | None = None) -> None:
        """End every frame that is left; the one whose cell used up the budget by `timeout`."""
        for frame in self._frames:
            if frame.status != "ended":
                self._stop(frame, "timeout" if frame is culprit else reason)

    def _stop(self, frame: Frame, reason: StopReason) -> None:
        frame.status, frame.stop_reason = "ended", reason
        frame.unsent, frame.calls = [], None
        self._ended.append(frame)
        self._release(frame)

    def _release(self, frame: Frame) -> None:
        repl, frame.repl = frame.repl, None
        if repl is not None:
            repl.close()
