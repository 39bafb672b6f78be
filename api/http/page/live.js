// The live view: asks the server every second what it has done, and draws the difference.

import { ApiError, get } from "./api.js";
import { drawBlocks, drawDots, drawLines, short } from "./charts.js";

const EVERY_MS = 1000;
const KEEP = 120;

const $ = (id) => document.getElementById(id);
const history = { throughput: [], real: [], predicted: [], running: [], waiting: [] };
const depths = [];
let last = null;

function keep(list, value) {
  list.push(value);
  if (list.length > KEEP) list.shift();
}

const ms = (seconds) => (seconds === null ? "–" : `${short(seconds * 1000)} ms`);
const total = (counts) => counts.reduce((sum, count) => sum + count, 0);
const weighted = (counts) => counts.reduce((sum, count, depth) => sum + count * depth, 0);

/** What happened between two answers of the server, `seconds` apart. */
function note(now, before, seconds) {
  const steps = now.num_steps - before.num_steps;
  const perStep = (name) => (steps ? ((now[name] - before[name]) / steps) * 1000 : null);
  keep(history.throughput, (now.num_generated_tokens - before.num_generated_tokens) / seconds);
  keep(history.real, perStep("step_seconds"));
  keep(history.predicted, perStep("predicted_step_seconds"));
  keep(history.running, now.num_running);
  keep(history.waiting, now.num_waiting);
  const checks = total(now.draft_depths) - total(before.draft_depths);
  if (checks > 0 && now.num_running) {
    const depth = (weighted(now.draft_depths) - weighted(before.draft_depths)) / checks;
    keep(depths, [now.num_running, depth]);
  }
}

function showNumbers(now) {
  const { ttft, itl } = now.latency_s;
  $("throughput").textContent = short(history.throughput.at(-1) ?? 0);
  $("ttft").textContent = ms(ttft.p50);
  $("ttft-95").textContent = ttft.p95 === null ? "" : `p95 ${ms(ttft.p95)}`;
  $("itl").textContent = ms(itl.p50);
  $("itl-95").textContent = itl.p95 === null ? "" : `p95 ${ms(itl.p95)}`;
  $("running").textContent = now.num_running;
  $("waiting").textContent = `${now.num_waiting} waiting`;
  $("wait").textContent = ms(now.predicted_wait_s);
  const share = now.num_cached_prompt_tokens / Math.max(1, now.num_prompt_tokens);
  $("cached").textContent = `${Math.round(100 * share)} %`;
}

function draw(now) {
  const newest = (list) => short(list.at(-1) ?? 0);
  drawLines($("plot-throughput"), [history.throughput], {
    say: `Tokens per second, now ${newest(history.throughput)}`,
  });
  drawLines($("plot-step"), [history.real, history.predicted], {
    say: `Step time, now ${newest(history.real)} ms, predicted ${newest(history.predicted)} ms`,
  });
  drawLines($("plot-queue"), [history.running, history.waiting], {
    say: `${now.num_running} requests running, ${now.num_waiting} waiting`,
  });
  drawDots($("plot-depth"), depths, {
    xLabel: "requests running",
    say: depths.length
      ? `Depth ${short(depths.at(-1)[1])} at ${depths.at(-1)[0]} running`
      : "No speculation yet",
  });
  drawBlocks($("blocks"), now.kv_blocks);
}

function showState(text, isBad) {
  $("model").classList.toggle("bad", isBad);
  if ($("model").textContent === text) return;
  $("model").textContent = text;
  $("live-state").textContent = text;
}

async function look() {
  try {
    const now = await get("v1/live");
    const at = performance.now();
    if (last) note(now, last.now, (at - last.at) / 1000);
    last = { now, at };
    showState(now.model, false);
    showNumbers(now);
    if (getComputedStyle($("live")).display !== "none") draw(now);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      document.dispatchEvent(new Event("key-wanted"));
    }
    last = null;
    showState(error instanceof ApiError ? error.message : "the server does not answer", true);
  }
}

export function startLive() {
  const tick = async () => {
    if (!document.hidden) await look();
    setTimeout(tick, EVERY_MS);
  };
  tick();
}
