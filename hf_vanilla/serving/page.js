"use strict";
// What comes from a text goes into the page as `textContent` only.
const [form, text, button, state, result] = ["form", "text", "button", "state", "result"].map((id) =>
  document.getElementById(id));
const { source, target, alternatives } = document.querySelector("main").dataset;
let isAsking = false;

function element(name, content) {
  const made = document.createElement(name);
  if (content !== undefined) made.textContent = content;
  return made;
}

function say(message, isWrong) {
  state.textContent = message;
  state.classList.toggle("wrong", isWrong);
}

function row(kind, cells) {
  const made = element("tr");
  made.append(...cells.map((cell) => element(kind, cell)));
  if (kind === "td") made.firstChild.dir = "auto";
  else for (const head of made.children) head.scope = "col";
  return made;
}

function show(answer) {
  const best = element("p", answer.translatedText);
  best.className = "best";
  best.dir = "auto";
  result.replaceChildren(best);
  const scores = answer.scores || [];
  if (!scores.length) return;
  const table = element("table");
  table.append(element("caption", "The best translations and their scores (log-probability by length)"));
  const head = element("thead"), body = element("tbody");
  for (const cell of [head, body, table]) cell.lang = "en";
  head.append(row("th", ["Translation", "Score"]));
  const all = [answer.translatedText, ...answer.alternatives];
  body.append(...all.map((each, place) => row("td", [each, scores[place].toFixed(3)])));
  if (target !== "xx") for (const line of body.children) line.firstChild.lang = target;
  table.append(head, body);
  result.append(table);
}

async function translate() {
  if (isAsking || !text.value.trim()) return;
  isAsking = true;
  button.setAttribute("aria-disabled", "true");
  say("Translating …", false);
  try {
    const response = await fetch("translate", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ q: text.value, source, target, format: "text", alternatives: Number(alternatives) }),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    show(answer);
    say("Done.", false);
  } catch (error) {
    result.replaceChildren();
    say(error instanceof TypeError ? "The server does not answer." : error.message, true);
  } finally {
    isAsking = false;
    button.removeAttribute("aria-disabled");
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) translate();
});
