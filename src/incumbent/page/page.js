// The page works without this: it follows the changes, finds names while one types, and shows the
// times in the reader's zone.
"use strict";
let main = document.querySelector("main[data-view]");
const link = document.getElementById("link");
const live = document.getElementById("live");
let source = null;
let lost = 0;

// -- times ----------------------------------------------------------------------------------------

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const format = (options) => new Intl.DateTimeFormat("sv-SE", options);
const clock = format({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = format({ dateStyle: "short" });
const minute = format({ dateStyle: "short", timeStyle: "short" });
const whole = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "long" });

function localise(root) {
  const today = day.format(new Date());
  for (const time of root.querySelectorAll("time:not([title])")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = `${whole.format(at)} (${time.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    time.textContent = day.format(at) === today ? clock.format(at) : minute.format(at);
  }
}

// -- changes --------------------------------------------------------------------------------------

function element(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

function patch(event) {
  const said = JSON.parse(event.data);
  const fresh = new Map(Object.entries(said.rows).map(([id, html]) => [id, element(html)]));
  for (const [id, row] of fresh) {
    localise(row);
    const old = document.getElementById(id);
    if (!old) continue;
    const focused = old.contains(document.activeElement);
    if ("open" in row) row.open = old.open;
    const before = old.querySelector("pre");
    const atEnd = before && before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
    const kept = before?.scrollTop;
    old.replaceWith(row);
    const output = row.querySelector("pre");
    if (output) output.scrollTop = atEnd ? output.scrollHeight : kept;
    if (focused) (row.querySelector("a, summary") || row).focus();
  }
  const focus = document.activeElement;
  for (const [id, rows] of Object.entries(said.orders)) {
    const block = document.getElementById(id);
    if (!block) continue;
    const wanted = new Set(rows);
    for (const row of [...block.children]) if (!wanted.has(row.id)) row.remove();
    rows.forEach((name, place) => {
      const row = document.getElementById(name) || fresh.get(name);
      if (row && block.children[place] !== row) block.insertBefore(row, block.children[place] || null);
    });
  }
  // What is moved loses the focus.
  if (focus !== document.activeElement && focus.isConnected) focus.focus();
  const read = document.getElementById("read");
  read.innerHTML = said.read;
  localise(read);
  link.textContent = "";
}

function follow(on) {
  source?.close();
  source = null;
  const found = () => { clearTimeout(lost); lost = 0; };
  found();
  live.setAttribute("aria-pressed", String(on));
  link.textContent = on ? "" : "Not followed: what stands here gets old.";
  if (!on) return;
  const view = main.dataset.view || "?";
  source = new EventSource(`events${view}${view === "?" ? "" : "&"}since=${main.dataset.edition}`);
  source.onmessage = (event) => { main.dataset.edition = event.lastEventId; patch(event); };
  source.onopen = () => { found(); link.textContent = ""; };
  // A stream may end and go on at once: then there is nothing to say.
  const say = () => { link.textContent = "No connection: what stands here gets old."; };
  source.onerror = () => { lost ||= setTimeout(say, 4000); };
}

// -- the view: one that is chosen in the form has a URL of its own ----------------------------------

const form = document.querySelector("form[role=search]");
let typed = 0;

function chosen() {
  const plain = { q: "", show: "", sort: "worst", window: "1h" };
  const named = [...new FormData(form)].filter(([name, value]) => value !== plain[name]);
  return `./${named.length ? "?" : ""}${new URLSearchParams(named)}`;
}

async function show(url) {
  const turn = ++typed;
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    const there = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = there.querySelector("main[data-view]");
    if (turn !== typed) return;
    if (!answer.ok || !fresh) { location.href = url; return; }
    history.replaceState(null, "", url);
    main.replaceWith(document.adoptNode(fresh));
    main = fresh;
    localise(main);
    follow(live.getAttribute("aria-pressed") === "true");
  } catch {
    link.textContent = "No connection: what stands here gets old.";
  }
}

if (main) {
  document.getElementById("zone").textContent = zone;
  localise(document);
  live.hidden = false;
  live.addEventListener("click", () => follow(live.getAttribute("aria-pressed") !== "true"));
  if (form) {
    let pause = 0;
    form.elements.q.addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(() => show(chosen()), 250);
    });
    for (const name of ["show", "sort", "window"]) {
      form.elements[name].addEventListener("change", () => { location.href = chosen(); });
    }
    form.addEventListener("submit", (event) => { event.preventDefault(); location.href = chosen(); });
  }
  follow(true);
}
