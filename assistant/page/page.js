// Asks questions, and shows the tree of agents, the quotes, and the quotes in their documents.
// Everything from the server is set as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const LOST = "No answer from rlm chat. Start it again if it has ended, then reload this page.";

let running = null; // the exchange that is being answered
let about = { model: "", documents: [] };
let shown = null; // what the reader shows: {name, opener}
const texts = new Map(); // promises of documents, by name

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A name with characters that reorder text could pass for another one.
function visible(name) {
  const hidden = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  return name.replace(hidden, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

// --- the wire

async function request(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(LOST);
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer;
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      throw error.name === "AbortError" ? error : new Error(LOST);
    }
    if (part.done) return;
    const blocks = (rest + part.value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
    }
  }
}

function textOf(name) {
  if (!texts.has(name)) {
    const text = request(`api/documents/${encodeURIComponent(name)}`)
      .then((answer) => answer.arrayBuffer())
      // A byte order mark counts as a character of the document.
      .then((bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes));
    text.catch(() => texts.delete(name));
    texts.set(name, text);
  }
  return texts.get(name);
}

// --- an exchange: a question, its tree of agents, its answer

function begin(question) {
  for (const old of $("exchanges").children) old.open = false;
  const facts = element("p", { className: "facts quiet" });
  const answer = element("div", { className: "answer" });
  const tree = element("div", { className: "tree" }, element("h2", {}, "Agents"));
  const node = element(
    "details", { className: "card exchange", open: true },
    element("summary", {}, element("h3", {}, question)), facts, answer, tree,
  );
  tree.hidden = true;
  $("exchanges").prepend(node);
  return {
    facts, answer, tree,
    frames: new Map(), // {node, state, turns, isHeld} by number
    turns: 0,
    quotes: new Map(), // of the answer, by document
    isOver: false,
    began: performance.now(),
    stop: new AbortController(),
  };
}

async function ask(question) {
  const exchange = running = begin(question);
  const clock = setInterval(() => drawProgress(exchange), 200);
  $("send").textContent = "Stop";
  tell(`Asking ${about.model} about ${count(about.documents.length, "document")}. Escape stops.`);
  drawProgress(exchange);
  try {
    const answer = await request("api/ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ question }),
      signal: exchange.stop.signal,
    });
    for await (const event of eventsOf(answer.body)) take(exchange, event);
    if (!exchange.isOver) throw new Error(LOST);
  } catch (error) {
    if (error.name === "AbortError") tell("Stopped.");
    else fail(exchange, error.message);
  } finally {
    clearInterval(clock);
    for (const frame of exchange.frames.values()) {
      if (frame.state.textContent === "works") end(frame, "stopped");
    }
    running = null;
    $("send").textContent = "Ask";
  }
}

function take(exchange, event) {
  act(exchange, event);
  drawProgress(exchange);
}

function act(exchange, event) {
  if (event.event === "frame") grow(exchange, event);
  else if (event.event === "turn") addTurn(exchange, event);
  else if (event.event === "end") end(exchange.frames.get(event.frame), event.stop_reason);
  else if (event.event === "answer") drawAnswer(exchange, event);
  else if (event.event === "error") fail(exchange, event.message);
}

function grow(exchange, { frame, parent, kind, question }) {
  const above = exchange.frames.get(parent);
  const name = above ? `${kind === "llm" ? "completion" : "child"} ${frame}` : "root";
  const state = element("span", { className: "state" }, "works");
  const node = element(
    "details", { className: "agent works", open: true },
    element(
      "summary", {},
      element("span", { className: "name" }, name),
      element("span", { className: "asked" }, question),
      state,
    ),
  );
  const made = { node, state, isRoot: !above, isHeld: false };
  node.firstChild.addEventListener("click", () => { made.isHeld = true; });
  exchange.frames.set(frame, made);
  (above ? above.node : exchange.tree).append(node);
  exchange.tree.hidden = false;
}

function addTurn(exchange, { frame, turn, text, observation }) {
  const { node } = exchange.frames.get(frame);
  const part = (title, content, kind) =>
    node.append(
      element("div", { className: "who" }, title),
      element("pre", { className: kind }, content),
    );
  if (observation) part("output", observation.replace(/^\n+/, ""), "");
  part(`turn ${turn + 1}`, text, "mine");
  exchange.turns += 1;
}

function end(frame, reason) {
  frame.state.textContent = reason;
  frame.node.classList.remove("works");
  if (!frame.isRoot && !frame.isHeld) frame.node.open = false;
}

function drawFacts(facts, parts) {
  // A line breaks between facts, never within one.
  facts.textContent = parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");
}

function drawProgress({ facts, frames, turns, began, isOver }) {
  if (isOver) return;
  const elapsed = ((performance.now() - began) / 1000).toFixed(1);
  const parts = [`${elapsed} s`];
  if (frames.size) parts.push(count(frames.size, "agent"), count(turns, "turn"));
  drawFacts(facts, parts);
}

function fail(exchange, message) {
  drawProgress(exchange);
  exchange.isOver = true;
  tell("No answer.");
  exchange.answer.append(element("p", { className: "problem", role: "alert" }, message));
}

function drawAnswer(exchange, event) {
  exchange.isOver = true;
  const { usage, cost, evidence, unfounded } = event;
  const parts = [`${event.seconds.toFixed(1)} s`];
  if (event.turns) {
    parts.push(count(event.turns, "turn"), count(event.sub_calls, "sub-call"), `depth ${event.depth}`);
  } else parts.push("read by no model");
  if (usage) {
    const [read, written] = [usage.prompt_tokens, usage.completion_tokens];
    parts.push(count(usage.requests, "request"));
    parts.push(`${read.toLocaleString("en")} + ${written.toLocaleString("en")} tokens`);
  }
  if (cost) parts.push(`cost ${cost.toFixed(4)}`);
  drawFacts(exchange.facts, parts);
  for (const quote of evidence) {
    const known = exchange.quotes.get(quote.document) || [];
    exchange.quotes.set(quote.document, [...known, quote]);
  }
  if (event.sentence) {
    exchange.answer.append(element("p", {}, `The model says: ${event.sentence}`));
  }
  for (const [name, quotes] of exchange.quotes) drawQuotes(exchange, name, quotes);
  const said = conclusion(event, exchange.quotes.size);
  if (!evidence.length) exchange.answer.append(element("p", {}, said));
  if (unfounded) {
    const lost = `${count(unfounded, "quote")} of the answer occur in no document: left out.`;
    exchange.answer.append(element("p", { className: "quiet" }, lost));
  }
  tell(said);
}

function conclusion({ evidence, stop_reason: reason }, documents) {
  if (evidence.length) {
    return `${count(evidence.length, "quote")} in ${count(documents, "document")}.`;
  }
  if (reason === "final") return "Nothing in these documents answers that.";
  return `The model gave no answer; its episode ended with “${reason}”.`;
}

function drawQuotes(exchange, name, quotes) {
  const items = quotes.map((quote, place) => {
    const button = element("button", { type: "button", className: "quote" }, quote.text);
    button.addEventListener("click", () => read(name, quotes, place, button));
    return element("li", {}, button);
  });
  exchange.answer.append(
    element("section", {}, element("h3", {}, visible(name)), element("ul", {}, ...items)),
  );
}

// --- the reader

// Positions count characters as Python does; JavaScript counts UTF-16 units.
function indexes(text, points) {
  let index = 0;
  let point = 0;
  return points.map((wanted) => {
    while (point < wanted && index < text.length) {
      index += text.codePointAt(index) > 0xffff ? 2 : 1;
      point += 1;
    }
    return index;
  });
}

async function read(name, quotes, place, opener) {
  const wanted = shown = { name, opener };
  let text;
  try {
    text = await textOf(name);
  } catch (error) {
    problem(error.message);
    return;
  }
  if (shown !== wanted) return; // another document was chosen meanwhile
  problem("");
  const edges = indexes(text, quotes.flatMap(({ start, end: last }) => [start, last]));
  const marks = [];
  const parts = [];
  let at = 0;
  for (let number = 0; number < quotes.length; number += 1) {
    const [from, to] = edges.slice(2 * number, 2 * number + 2);
    marks.push(element("mark", { tabIndex: -1 }, text.slice(from, to)));
    parts.push(text.slice(at, from), marks[number]);
    at = to;
  }
  $("reader-title").textContent = visible(name);
  $("reader-facts").textContent = quotes.length
    ? `Quote ${place + 1} of ${quotes.length} in this document.`
    : `${count([...text].length, "character")}.`;
  $("text").replaceChildren(...parts, text.slice(at));
  $("reader").hidden = false;
  const target = marks[place] || $("text");
  $("text").scrollTop = marks[place] ? target.offsetTop - $("text").clientHeight / 3 : 0;
  target.focus({ preventScroll: true });
}

function closeReader() {
  const { opener } = shown;
  $("reader").hidden = true;
  shown = null;
  opener.focus();
}

// --- the page

function tell(state) {
  problem("");
  $("state").textContent = state;
}

function problem(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    running.stop.abort();
  } else if ($("question").value.trim()) {
    const question = $("question").value.trim();
    $("question").value = "";
    ask(question);
  }
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!running) $("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const isReading = !$("reader").hidden;
  if (isReading && (!running || $("reader").contains(document.activeElement))) closeReader();
  else if (running) running.stop.abort();
});
$("close").addEventListener("click", closeReader);

request("api/documents").then((answer) => answer.json()).then((found) => {
  about = found;
  const number = count(found.documents.length, "document");
  $("about").textContent = found.reads
    ? `${found.model} searches them with code, gives parts to copies of itself, and answers with ` +
      "verbatim quotes."
    : "Passages are ranked for your question. No model reads them.";
  $("library-title").textContent = number;
  $("documents").append(...found.documents.map(({ name, size }) => {
    const button = element(
      "button", { type: "button" },
      element("span", {}, visible(name)),
      element("span", { className: "size" }, count(size, "character")),
    );
    button.addEventListener("click", () => read(name, [], 0, button));
    return element("li", {}, button);
  }));
}).catch((error) => problem(error.message));
