// Plays an episode by hand, as a client of the server's WebSocket.
// Everything from the server is shown as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const COMPONENTS = {
  primary_objective: "evidence quoted",
  process_quality: "right papers read",
  format_compliance: "clean turns",
  efficiency: "few steps",
};
const LEVELS = ["easy", "medium", "hard"];
const EXAMPLES = {
  "list_papers": "print(list_papers(context))",
  "search": "hits = search(context, \"\")\nprint(hits)",
  "rlm_query": "answer = rlm_query(\"\", context[\"\"])\nprint(answer)",
  "rlm_query_batched":
    "ids = list(hits)\nanswers = rlm_query_batched([\"\"] * len(ids), [context[i] for i in ids])\nprint(answers)",
  "FINAL": "FINAL([\"\"])",
};
const BLANK = "```repl\n\n```";
const WEIGHTS = "rewards.weights.";

let socket = null;
let waiting = null; // resolves with the answer to the message in flight
const weights = {};
let mostTurns = null; // of one agent
let episode = null; // {frames: Map, shown, observation}

// --- the wire

function connect() {
  return new Promise((resolve, reject) => {
    const address = new URL("ws", location.href);
    address.protocol = address.protocol.replace("http", "ws");
    socket = new WebSocket(address);
    socket.onopen = resolve;
    socket.onmessage = (event) => {
      const answer = JSON.parse(event.data);
      if (waiting) {
        const { resolve: done, reject: fail } = waiting;
        waiting = null;
        if (answer.type === "error") fail(new Error(answer.data.message));
        else done(answer.data);
      } else if (answer.type === "error") {
        tell(answer.data.message);
      }
    };
    socket.onclose = () => {
      const error = new Error("The connection was closed. Start a new episode.");
      reject(error);
      if (waiting) waiting.reject(error);
      waiting = null;
      socket = null;
    };
  });
}

async function ask(type, data) {
  if (!socket) await connect();
  return new Promise((resolve, reject) => {
    waiting = { resolve, reject };
    socket.send(JSON.stringify(data === undefined ? { type } : { type, data }));
  });
}

// --- an episode

async function begin() {
  const wanted = {};
  if ($("difficulty").value) wanted.difficulty = $("difficulty").value;
  if ($("seed").value) wanted.seed = Number($("seed").value);
  const answer = await ask("reset", wanted);
  if (answer.observation.refused) throw new Error(answer.observation.refused);
  episode = { frames: new Map(), shown: 0, observation: null };
  await take(answer);
}

async function send(text) {
  const frame = episode.shown;
  const answer = await ask("step", { turns: [{ frame, text }] });
  if (answer.observation.refused) throw new Error(answer.observation.refused);
  episode.frames.get(frame).messages.push({ role: "mine", content: text });
  await take(answer);
}

async function take({ observation, reward, done }) {
  for (const view of observation.frames) {
    const known = episode.frames.get(view.frame) || { messages: [] };
    episode.frames.set(view.frame, {
      ...known, ...view, messages: [...known.messages, ...view.messages],
    });
  }
  const state = await ask("state");
  for (const seen of state.frames) {
    const known = episode.frames.get(seen.frame) || { messages: [] };
    episode.frames.set(seen.frame, { ...known, ...seen, messages: known.messages });
  }
  episode.observation = { ...observation, reward, done };
  const ready = [...episode.frames.values()].filter((frame) => frame.status === "ready");
  const still = ready.some((frame) => frame.frame === episode.shown);
  if (done) episode.shown = 0;
  else if (!still && ready.length) episode.shown = ready[0].frame;
  draw();
}

// --- drawing

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function name(frame) {
  if (frame.parent === null) return "root";
  return `${frame.kind === "llm" ? "completion" : "child"} ${frame.frame}`;
}

function stateOf(frame) {
  if (frame.status === "ended") return frame.stop_reason || "ended";
  return frame.status === "ready" ? "your turn" : "waiting";
}

function drawTree() {
  const branch = (parent) =>
    [...episode.frames.values()]
      .filter((frame) => frame.parent === parent)
      .map((frame) => {
        const button = element(
          "button",
          {
            type: "button",
            className: frame.status,
            onclick: () => { episode.shown = frame.frame; draw(); },
            "aria-current": String(frame.frame === episode.shown),
          },
          element("span", {}, name(frame)),
          element("span", { className: "state" }, stateOf(frame)),
        );
        const below = branch(frame.frame);
        const item = element("li", {}, button);
        if (below.length) item.append(element("ul", {}, ...below));
        return item;
      });
  $("no-tree").hidden = true;
  $("tree").replaceChildren(...branch(null));
}

function drawMessages(frame) {
  const who = { system: "rules", user: "environment", mine: "you" };
  $("frame-title").textContent = `${name(frame)}, depth ${frame.depth}`;
  $("messages").replaceChildren(
    ...frame.messages.map((message) => {
      const text = element("pre", {}, message.content);
      if (message.role === "system") {
        return element(
          "details", { className: "message" }, element("summary", {}, "Rules of this agent"), text,
        );
      }
      return element(
        "div", { className: `message ${message.role}` },
        element("div", { className: "who" }, who[message.role]), text,
      );
    }),
  );
}

function pairs(list, entries) {
  list.replaceChildren(
    ...entries.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, String(value))]),
  );
}

function drawFacts({ problem, counters }) {
  $("facts-card").hidden = false;
  pairs($("facts"), [
    ["problem", problem.problem_id],
    ...(problem.difficulty ? [["difficulty", problem.difficulty]] : []),
    ["papers", problem.papers],
    ...(problem.tier ? [["tier", problem.tier]] : []),
    ["turns", counters.turns],
    ["sub-calls", counters.sub_calls],
    ["errors", counters.errors],
  ]);
}

function drawResult({ done, reward, components, metrics, answer, void: lost }) {
  $("result").hidden = !done;
  if (!done) return;
  $("reward").className = lost ? "void" : "";
  $("reward").textContent = lost ? `void: ${lost}` : reward === null ? "not scored" : reward.toFixed(2);
  $("components").replaceChildren(
    ...Object.entries(components).map(([key, value]) =>
      element(
        "div", { className: "bar" },
        element(
          "div", {},
          element("span", {}, COMPONENTS[key] || key),
          element("span", {}, `${value.toFixed(2)} × ${weights[key] ?? "?"}`),
        ),
        element("meter", { min: 0, max: 1, value }),
      ),
    ),
  );
  const figures = metrics ? ["precision", "recall", "f1"].map((key) => [key, metrics[key].toFixed(2)]) : [];
  pairs($("metrics"), figures);
  $("answer").textContent = JSON.stringify(answer, null, 2);
}

function draw() {
  const frame = episode.frames.get(episode.shown);
  drawTree();
  drawMessages(frame);
  drawFacts(episode.observation);
  drawResult(episode.observation);
  const ready = frame.status === "ready" && !episode.observation.done;
  $("composer").hidden = !ready;
  if (ready) {
    $("turn").value = frame.kind === "llm" ? "" : BLANK;
    $("chips").hidden = frame.kind === "llm";
    $("status").textContent = frame.kind === "llm"
      ? "Answer in plain text."
      : `Turn ${frame.turns + 1} of ${mostTurns ?? "?"}. Ctrl+Enter sends.`;
    $("turn").focus({ preventScroll: true });
    $("turn").setSelectionRange(8, 8);
  }
  tell("");
}

function tell(problem) {
  $("problem").hidden = !problem;
  $("problem").textContent = problem;
}

// --- the visitor's actions

async function busy(work) {
  const buttons = document.querySelectorAll("button.primary");
  buttons.forEach((button) => { button.disabled = true; });
  try {
    tell("");
    await work();
  } catch (error) {
    tell(error.message);
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  busy(begin);
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("turn").value;
  if (text.trim()) busy(() => send(text));
});
$("turn").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("composer").requestSubmit();
});
for (const [label, code] of Object.entries(EXAMPLES)) {
  const put = () => { $("turn").value = "```repl\n" + code + "\n```"; $("turn").focus(); };
  $("chips").append(element("button", { type: "button", onclick: put }, label));
}

fetch("metadata").then((answer) => answer.json()).then((about) => {
  for (const [name, value] of Object.entries(about.rules)) {
    if (name.startsWith(WEIGHTS)) weights[name.slice(WEIGHTS.length)] = value;
    if (name === "env.limits.max_turns") mostTurns = value;
  }
  const rank = (level) => LEVELS.indexOf(level);
  for (const level of about.difficulties.sort((a, b) => rank(a) - rank(b))) {
    $("difficulty").append(element("option", { value: level }, level));
  }
  $("about").textContent =
    `${about.problems} problems (${about.problem_source}). Code runs behind: ` +
    `${about.sandbox_layers.join(", ")}. Gold stays on the server. The reward comes at the end.`;
}).catch(() => tell("The server does not answer. Try again later."));
