// The server makes all HTML; this puts it in place, and tells whether it still comes.
"use strict";

const link = document.getElementById("link");
const body = document.body;
const linesMost = 5000;

function say(text, well) {
  if (link.textContent !== text) link.textContent = text;
  link.className = well ? "well" : "lost";
}

function parsed(html) {
  const t = document.createElement("template");
  t.innerHTML = html;
  return t.content;
}

// idOf is an element's id: a form's property of that name may be a field of it.
const idOf = (x) => x.nodeType === Node.ELEMENT_NODE ? x.getAttribute("id") : null;

// become changes an element into another, as little as it can: what has the focus, or is marked, stays so.
function become(is, to) {
  if (is.nodeType !== to.nodeType || is.nodeName !== to.nodeName) { is.replaceWith(to); return to; }
  if (is.nodeType !== Node.ELEMENT_NODE) {
    if (is.data !== to.data) is.data = to.data;
    return is;
  }
  for (const a of [...is.attributes]) if (!to.hasAttribute(a.name)) is.removeAttribute(a.name);
  for (const a of to.attributes) if (is.getAttribute(a.name) !== a.value) is.setAttribute(a.name, a.value);
  if (is.hasAttribute("data-keep")) return is;
  let at = is.firstChild;
  for (const kid of [...to.childNodes]) {
    let same = idOf(kid) ? [...is.children].find((x) => idOf(x) === idOf(kid)) : at && !idOf(at) ? at : null;
    if (!same) { is.insertBefore(kid, at); continue; }
    if (same !== at) is.insertBefore(same, at); else at = at.nextSibling;
    become(same, kid);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
  return is;
}

function put(pairs) {
  for (const [id, html] of pairs) {
    const is = document.getElementById(id), to = parsed(html).firstElementChild;
    if (!is || !to) { location.reload(); return; }
    become(is, to);
  }
}

function add(html) {
  const list = document.getElementById("lines");
  const end = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
  list.append(parsed(html));
  while (list.children.length > linesMost) list.firstElementChild.remove();
  if (!end) return;
  list.scrollTop = list.scrollHeight;
  requestAnimationFrame(() => { list.scrollTop = list.scrollHeight; }); // what is seen now may be higher than it was taken for
}

// open follows a stream of events while the page is to be seen: a browser has few connections for all its tabs. It opens
// it again when it was lost, until an event says that it is over, and goes on behind the last lines.
function open(url, on) {
  let heard = 0, es = null, over = false, asks = false, at = "";
  function start() {
    if (over || es || asks || document.hidden) return;
    heard = Date.now();
    const now = es = new EventSource(url + (at && "&at=" + encodeURIComponent(at)));
    for (const name of ["hello", "still", "put", "lines", "end"]) {
      now.addEventListener(name, (e) => {
        heard = Date.now();
        if (name === "lines") at = e.lastEventId;
        if (name === "hello" && JSON.parse(e.data) !== body.dataset.version) { location.reload(); return; }
        if (name === "end") { over = true; stop(); }
        on(name, JSON.parse(e.data));
      });
    }
    now.onerror = () => {
      say("reconnecting", false);
      if (now.readyState === EventSource.CLOSED) again();
    };
  }
  function stop() {
    if (es) es.close();
    es = null;
  }
  // again looks whether it was lost for good: the session has ended.
  async function again() {
    stop();
    asks = true;
    try {
      const res = await fetch("icon.svg", { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (res.status === 401) { say("ended: run sparkrun web", false); over = true; return; }
    } catch { /* the agent does not answer */ }
    setTimeout(() => { asks = false; start(); }, 1000);
  }
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else start(); });
  setInterval(() => {
    if (es && Date.now() - heard > 15000) { say("reconnecting", false); again(); }
  }, 5000);
  start();
}

// follow shows a job's output: of the attempt that runs when the page is opened, then of each that begins.
let followed = "";
function follow() {
  const list = document.getElementById("lines"), url = list && list.dataset.lines;
  if (!url || url === followed) return;
  followed = url;
  const note = document.createElement("li");
  note.className = "note";
  open(url, (name, data) => {
    if (name === "lines") { note.remove(); add(data); }
    if (name === "end") note.textContent = list.children.length ? data : "no lines: " + data;
    if (name === "still" && !list.children.length) note.textContent = "nothing yet";
    if (name !== "lines" && note.textContent) list.append(note);
  });
}

if (body.dataset.view) {
  open("events?view=" + body.dataset.view + "&" + location.search.slice(1), (name, data) => {
    say("live", true);
    if (name === "put") { put(data); follow(); }
  });
}
follow();

// Keys: / to search, j and k from one entry to the next, g and a digit to a page, Escape to leave a field.
let went = false;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target.matches("input")) { if (e.key === "Escape") e.target.blur(); return; }
  const search = document.getElementById("search");
  if (e.key === "/" && search) { search.focus(); e.preventDefault(); }
  if (e.key === "j" || e.key === "k") {
    const all = [...document.querySelectorAll("main li a, main td a")];
    const at = all.indexOf(document.activeElement);
    const next = all[e.key === "j" ? Math.min(at + 1, all.length - 1) : Math.max(at - 1, 0)];
    if (next) { next.focus(); e.preventDefault(); }
  }
  if (went && e.key >= "1" && e.key <= "9") {
    const tab = document.querySelectorAll("nav a")[e.key - 1];
    if (tab) tab.click();
  }
  went = e.key === "g";
});
