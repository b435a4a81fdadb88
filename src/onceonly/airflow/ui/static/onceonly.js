// The pages are whole without this file: it keeps them fresh, asks slow questions, and sends what a user has confirmed.
"use strict";

const EVERY = 5000; // milliseconds between two looks at the state table
const FOLLOW_EVERY = 1000; // milliseconds between two looks at what was just asked for
const ROOT = document.body.dataset.root;
let lags = {};

// ---- fresh: the parts marked data-live are replaced where the server's answer differs

async function refresh() {
  if (document.hidden || document.querySelector("dialog[open]")) return;
  const answer = await fetch(location.href);
  if (!answer.ok) return stale(answer.status);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (ids(page) === ids(document)) {
    for (const part of document.querySelectorAll("[data-live]")) replace(part, page.getElementById(part.id));
  } else {
    document.getElementById("main").replaceWith(document.adoptNode(page.getElementById("main")));
  }
  keepWordsWhole(document.getElementById("main"));
  fillLags();
}

function replace(old, now) {
  if (!now || served.get(old.id) === now.outerHTML) return;
  served.set(old.id, now.outerHTML);
  const scrolled = [...old.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const focused = old.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const adopted = document.adoptNode(now);
  old.replaceWith(adopted);
  adopted.querySelectorAll(".scroll").forEach((each, number) => (each.scrollLeft = scrolled[number] ?? 0));
  if (focused) [...adopted.querySelectorAll("a, button, .scroll")].find((each) => nameOf(each) === focused)?.focus();
}

const ids = (page) => [...page.querySelectorAll("[data-live]")].map((part) => part.id).join();
const nameOf = (element) => `${element.getAttribute("href")} ${element.dataset.action} ${element.dataset.word} ${element.ariaLabel}`;
const served = new Map([...document.querySelectorAll("[data-live]")].map((part) => [part.id, part.outerHTML]));

function stale(status) {
  const fresh = document.getElementById("fresh");
  if (fresh) fresh.textContent = status === 401 ? "Your login has ended: reload Airflow." : `No fresh data (HTTP ${status}).`;
}

// ---- commands: no line ends within an option or a time

const WORDS_OF_COMMANDS = /(--[a-z][a-z-]*|\d{4}-\d\d-\d\dT[\d:]+Z?)/;

function keepWordsWhole(element) {
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (texts.nextNode()) nodes.push(texts.currentNode);
  for (const node of nodes.filter((each) => WORDS_OF_COMMANDS.test(each.data) && !each.parentElement.closest(".nowrap, pre, title"))) {
    const parts = node.data.split(WORDS_OF_COMMANDS).map((part, number) => {
      return number % 2 ? Object.assign(document.createElement("span"), { className: "nowrap", textContent: part }) : part;
    });
    node.replaceWith(...parts);
  }
}

// ---- lag: asked for apart from the page, which must not wait for a broker

async function askLags() {
  if (document.hidden || !document.querySelector("[data-lag]")) return;
  const answer = await fetch(`${ROOT}/lag`);
  if (!answer.ok) return;
  lags = await answer.json();
  fillLags();
}

function fillLags() {
  for (const cell of document.querySelectorAll("[data-lag]")) {
    const lag = lags[cell.dataset.lag];
    if (!lag) continue;
    cell.textContent = lag.text.replace(/(\d) (?=\w)/g, "$1\u00a0");  // a line does not end before a unit
    cell.title = lag.why;
    cell.dataset.state = lag.state;
  }
  for (const cell of document.querySelectorAll("[data-lag-why]")) {
    cell.textContent = lags[cell.dataset.lagWhy]?.why ?? "";
    cell.hidden = !cell.textContent;
  }
}

// ---- targets: whether they have what was published to them

async function askTargets() {
  for (const told of document.querySelectorAll("[data-targets]")) {
    if (document.hidden) return;
    const answer = await fetch(told.dataset.targets);
    if (!answer.ok) continue;
    const { lines } = await answer.json();
    if (lines) told.textContent = lines.join("\n");
    told.hidden = !told.textContent;
    keepWordsWhole(told);
  }
}

// ---- actions: confirmed in the dialog, with a reason

const dialog = document.getElementById("ask");
const reason = document.getElementById("ask-reason");
const told = document.getElementById("ask-answer");
const yes = document.getElementById("ask-yes");
const no = document.getElementById("ask-no");
let asked = null; // the data of the button that was pressed

function ask(button) {
  asked = { ...button.dataset };
  document.getElementById("ask-title").textContent = asked.title;
  document.getElementById("ask-what").textContent = asked.what;
  keepWordsWhole(document.getElementById("ask-what"));
  const choices = JSON.parse(asked.choices ?? "[]");
  document.getElementById("ask-choices").replaceChildren(...choices.map(choose));
  document.getElementById("ask-choices").hidden = !choices.length;
  yes.textContent = asked.yes;
  no.textContent = "Cancel";
  yes.hidden = false;
  reason.value = told.textContent = "";
  dialog.showModal();
  reason.focus();
}

// what may become of a sink's rows, the first is chosen
function choose({ sink, options }) {
  const label = document.createElement("label");
  const select = Object.assign(document.createElement("select"), { name: sink });
  for (const [word, meaning] of options) select.append(new Option(meaning, word));
  label.append(sink, select);
  return label;
}

function wish() {
  const chosen = [...document.querySelectorAll("#ask-choices select")];
  const named = (word) => chosen.filter((select) => select.value === word).map((select) => select.name);
  return { keep: named("keep"), again: [...named("again"), ...JSON.parse(asked.again)], only: JSON.parse(asked.only) };
}

async function act(event) {
  event.preventDefault();
  yes.disabled = true;
  told.textContent = "Working…";
  try {
    const seen = asked.seen && { seen: Number(asked.seen) }; // what was shown when the button was pressed
    const body = { reason: reason.value, ...seen, ...(asked.sink && { sink: asked.sink, word: asked.word }), ...(asked.choices && wish()) };
    const headers = { "Content-Type": "application/json", "X-Onceonly-Action": "1" };
    const answer = await fetch(asked.action, { method: "POST", headers, body: JSON.stringify(body) });
    const said = await answer.json().catch(() => ({}));
    tell(words(said, answer.status), said.run);
    yes.hidden = answer.ok;
    if (answer.ok) no.textContent = "Close"; // it is done, and closing cancels nothing
    if (said.follow) watch(said.follow, said.run);
  } catch (error) {
    told.textContent = `No answer (${error.message}): look at the checkpoint before you try again.`;
  } finally {
    yes.disabled = false;
  }
}

function tell(text, run) {
  told.textContent = text;
  keepWordsWhole(told);
  if (run) told.append("\n", linkToRun(run));
}

// how far something is that goes on when the answer is there, until it has ended or the dialog is closed
async function watch(path, run) {
  const followed = asked;
  const going = () => dialog.open && asked === followed;
  while (going()) {
    await new Promise((after) => setTimeout(after, FOLLOW_EVERY));
    const answer = await fetch(`${ROOT}${path}`).catch(() => null);
    if (!going() || !answer?.ok) continue;
    const { text, done } = await answer.json();
    tell(text, run);
    if (done) return;
  }
}

function linkToRun(path) {
  const link = Object.assign(document.createElement("a"), { href: document.body.dataset.base + path, textContent: "Open the run" });
  link.dataset.airflow = "";
  return link;
}

function words(answer, status) {
  const lines = [answer.done, answer.what, answer.why, answer.todo].filter(Boolean);
  if (lines.length) return lines.join("\n");
  return typeof answer.detail === "string" ? answer.detail : `Refused (HTTP ${status}).`;
}

// ---- evidence: what a sink shows, asked for by a user

async function showEvidence(button) {
  const shown = button.closest("section").querySelector(".evidence");
  shown.hidden = false;
  shown.textContent = "Asking…";
  const answer = await fetch(button.dataset.evidence);
  const { lines } = answer.ok ? await answer.json() : { lines: [`No answer (HTTP ${answer.status}).`] };
  shown.textContent = lines ? lines.join("\n") || "The sink shows nothing." : "No answer yet: try again.";
}

// ---- what is clicked

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-action], [data-evidence]");
  if (target?.dataset.action) ask(target);
  else if (target) showEvidence(target);
});
dialog.querySelector("form").addEventListener("submit", act);
no.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => refresh());
setInterval(() => refresh().catch(() => stale("none")), EVERY);
setInterval(() => askLags().catch(() => {}), 2 * EVERY);
setInterval(() => askTargets().catch(() => {}), 6 * EVERY);
keepWordsWhole(document.getElementById("main"));
askLags().catch(() => {});
askTargets().catch(() => {});
