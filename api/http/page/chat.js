// The conversation: what was said, the answer being written, and how it was made.

import { ApiError, stream } from "./api.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

let said = [];
let writing = null;

/** The request for an answer to `said`, with the parameters that the form sets. */
function request() {
  const system = $("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  const body = { messages, stream: true, logprobs: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  if (!$("speculate").checked) body.speculative = { enabled: false };
  return body;
}

function addMessage(role, text) {
  const item = document.createElement("li");
  item.className = role;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = role === "user" ? "You" : "Answer";
  const content = document.createElement("div");
  content.className = "text";
  content.textContent = text;
  item.append(who, content);
  $("messages").append(item);
  return item;
}

/** Append one event's text; of several tokens from one step, all but the last were guessed. */
function append(content, choice) {
  const text = choice.delta.content ?? "";
  const tokens = choice.logprobs?.content ?? [];
  const whole = tokens.map((token) => token.token).join("");
  if (tokens.length < 2 || whole !== text) {
    content.append(text);
    return tokens.length > 1 ? tokens.length - 1 : 0;
  }
  const guessed = document.createElement("span");
  guessed.className = "drafted";
  guessed.title = "guessed ahead";
  guessed.textContent = whole.slice(0, whole.length - tokens.at(-1).token.length);
  content.append(guessed, tokens.at(-1).token);
  return tokens.length - 1;
}

/** Scroll along, unless the reader has scrolled away. */
function follow(change) {
  const list = $("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  change();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

function facts(item, { begin, first, end, usage, guessed, reason }) {
  const parts = [];
  if (usage) parts.push(`${usage.completion_tokens} tokens`);
  if (first) parts.push(`first after ${Math.round(first - begin)} ms`);
  if (usage && first && usage.completion_tokens > 1) {
    const rate = ((usage.completion_tokens - 1) / (end - first)) * 1000;
    parts.push(`${rate.toFixed(0)} tokens/s`);
  }
  if (usage && guessed) {
    parts.push(`${Math.round((100 * guessed) / usage.completion_tokens)} % guessed ahead`);
  }
  if (reason === "length") parts.push("cut at the limit");
  if (reason === "stopped") parts.push("stopped");
  const line = document.createElement("div");
  line.className = "facts";
  line.textContent = parts.join(" · ");
  follow(() => item.append(line));
}

async function answer() {
  const item = addMessage("assistant", "");
  const content = item.querySelector(".text");
  const made = { begin: performance.now(), guessed: 0 };
  item.classList.add("writing");
  writing = new AbortController();
  setBusy(true);
  try {
    for await (const event of stream("v1/chat/completions", request(), writing.signal)) {
      made.usage = event.usage ?? made.usage;
      const [choice] = event.choices;
      if (!choice) continue;
      if (choice.delta.content) made.first ??= performance.now();
      follow(() => (made.guessed += append(content, choice)));
      made.reason = choice.finish_reason ?? made.reason;
      made.end = performance.now();
    }
  } catch (error) {
    if (error.name === "AbortError") made.reason = "stopped";
    else showError(item, error);
  }
  item.classList.remove("writing");
  setBusy(false);
  said.push({ role: "assistant", content: content.textContent });
  facts(item, made);
  $("spoken").textContent = content.textContent;
}

function showError(item, error) {
  const line = document.createElement("div");
  line.className = "error";
  line.setAttribute("role", "alert");
  line.textContent = error.message;
  item.append(line);
  if (error instanceof ApiError && error.status === 401) {
    document.dispatchEvent(new Event("key-wanted"));
  }
}

function setBusy(isBusy) {
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  if (!isBusy) {
    writing = null;
    $("prompt").focus();
  }
}

function send(event) {
  event?.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || writing) return;
  said.push({ role: "user", content: text });
  addMessage("user", text);
  $("prompt").value = "";
  fit();
  $("messages").scrollTop = $("messages").scrollHeight;
  answer();
}

/** The message field grows with what is in it. */
function fit() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

export function startChat() {
  $("composer").addEventListener("submit", send);
  $("stop").addEventListener("click", () => writing?.abort());
  $("clear").addEventListener("click", () => {
    writing?.abort();
    said = [];
    $("messages").replaceChildren();
    $("prompt").focus();
  });
  $("prompt").addEventListener("input", fit);
  $("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") writing?.abort();
  });
  const tint = () => $("messages").classList.toggle("tinted", $("tint").checked);
  $("tint").addEventListener("change", tint);
  tint();
}
