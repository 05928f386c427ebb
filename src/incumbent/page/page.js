// The page works without this: it follows the changes, and finds names while one types.
"use strict";
const main = document.querySelector("main[data-window]");
const link = document.getElementById("link");
const live = document.getElementById("live");
let source = null;

function find() {
  const wanted = document.querySelector("[name=q]").value.toLowerCase();
  for (const row of document.querySelectorAll("[data-name]")) {
    row.hidden = row.dataset.name !== "" && !row.dataset.name.toLowerCase().includes(wanted);
  }
}

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

function patch(event) {
  const said = JSON.parse(event.data);
  const fresh = new Map(Object.entries(said.rows).map(([id, html]) => [id, element(html)]));
  for (const [id, row] of fresh) {
    const old = document.getElementById(id);
    if (!old) continue;
    const focused = old.contains(document.activeElement);
    old.replaceWith(row);
    if (focused) row.querySelector("a")?.focus();
  }
  for (const [id, rows] of Object.entries(said.orders)) {
    const block = document.getElementById(id);
    const wanted = new Set(rows);
    for (const row of [...block.children]) if (!wanted.has(row.id)) row.remove();
    rows.forEach((name, place) => {
      const row = document.getElementById(name) || fresh.get(name);
      if (row && block.children[place] !== row) block.insertBefore(row, block.children[place] || null);
    });
  }
  document.getElementById("read").innerHTML = said.read;
  link.textContent = "";
  find();
}

function follow(on) {
  source?.close();
  source = null;
  live.setAttribute("aria-pressed", String(on));
  link.textContent = on ? "" : "Not followed: what stands here gets old.";
  if (!on) return;
  // A page that shows only some names lacks the rows of the others.
  const since = document.querySelector("[name=q]").defaultValue ? "" : main.dataset.edition;
  source = new EventSource(`/events?window=${main.dataset.window}&since=${since}`);
  source.onmessage = (event) => { main.dataset.edition = event.lastEventId; patch(event); };
  source.onerror = () => { link.textContent = "No connection: what stands here gets old."; };
}

if (main) {
  live.hidden = false;
  live.addEventListener("click", () => follow(live.getAttribute("aria-pressed") !== "true"));
  document.querySelector("[name=q]").addEventListener("input", find);
  document.querySelector("[name=window]").addEventListener("change", (event) => event.target.form.submit());
  follow(true);
}
