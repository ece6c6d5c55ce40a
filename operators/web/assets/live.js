// Keeps an open page up to date: relative times, the tooltip of a slot, and the stream of changed
// pieces (pageUpdate in live.go). Every page is readable without this script.
"use strict";

(() => {
  const body = document.body;
  let ahead = Number(body.dataset.now) - Date.now(); // ms by which the server's clock is ahead of the browser's
  const now = () => Date.now() + ahead;

  // Relative times. The exact time is in the title of the element.
  function span(ms) {
    const s = Math.round(Math.abs(ms) / 1000);
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min" + (s < 600 && s % 60 ? " " + (s % 60) + " s" : "");
    if (s < 172800) return Math.floor(s / 3600) + " h" + (s < 36000 && s % 3600 >= 60 ? " " + Math.floor((s % 3600) / 60) + " min" : "");
    return Math.floor(s / 86400) + " d";
  }
  function short(ms) { // a duration as text that fits into a cell: 9 s, 4:32, 2 h
    const s = Math.round(ms / 1000);
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0");
    return Math.floor(s / 3600) + " h";
  }
  const relative = (ms) => (ms > now() ? "in " + span(ms - now()) : span(now() - ms) + " ago");
  const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  // The times of axes and in texts are shown in the reader's time zone. Without the script they are in UTC,
  // and the page says so.
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const axis = ["day", "minute", "second"].map((least, i) => new Intl.DateTimeFormat(undefined,
    i ? { hour: "2-digit", minute: "2-digit", second: i > 1 ? "2-digit" : undefined, hourCycle: "h23" } : { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }));
  function tickAxes() {
    for (const tick of document.querySelectorAll(".clocks text[data-at]")) {
      tick.dataset.form = tick.dataset.form || (/^[A-Z]/.test(tick.textContent) ? 0 : tick.textContent.split(":").length - 1);
      set(tick, axis[tick.dataset.form].format(Number(tick.dataset.at)));
    }
    for (const zone of document.querySelectorAll(".zone")) set(zone, "times in " + exact.resolvedOptions().timeZone);
  }

  function tickTimes() {
    for (const time of document.querySelectorAll("time[datetime]")) {
      set(time, time.classList.contains("at") ? exact.format(new Date(time.dateTime)) : relative(Date.parse(time.dateTime)));
    }
    tickAxes();
    for (const held of document.querySelectorAll(".grid.large a[data-until]")) {
      const left = Number(held.dataset.until) - now();
      set(held.querySelector("s"), left > 0 ? short(left) : "over");
    }
    if (pointed) showTip(pointed);
  }

  // The tooltip of a slot.
  const tip = document.getElementById("tip");
  let pointed = null;

  function showTip(slot) {
    const d = slot.dataset;
    const rows = [["device", d.device], ["task", d.task], ["batch", d.batch], ["since", span(now() - d.since)],
      [Number(d.until) > now() ? "expires in" : "lease over for", span(d.until - now())], ["token", d.token]];
    const title = document.createElement("b");
    title.textContent = "Slot " + d.slot + " · " + d.look;
    const list = document.createElement("dl");
    for (const [name, value] of rows) {
      list.append(Object.assign(document.createElement("dt"), { textContent: name }),
        Object.assign(document.createElement("dd"), { textContent: value }));
    }
    tip.replaceChildren(title, list);
    tip.hidden = false;
    const at = slot.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left + at.width / 2 - own.width / 2, innerWidth - own.width - 8));
    const above = at.top > own.height + 12;
    tip.style.left = left + scrollX + "px";
    tip.style.top = (above ? at.top - own.height - 8 : at.bottom + 8) + scrollY + "px";
  }
  const point = (event) => {
    pointed = event.target.closest ? event.target.closest("a[data-slot]") : null;
    if (pointed) showTip(pointed); else if (tip) tip.hidden = true;
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, point);
  document.addEventListener("focusout", () => { pointed = null; tip.hidden = true; });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && tip) { pointed = null; tip.hidden = true; }
    arrows(event);
  });

  // The arrow keys move the focus between the slots of the grid. Up and down stay in the same column.
  function arrows(event) {
    const from = event.target.closest ? event.target.closest(".grid .cell") : null;
    const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling", ArrowUp: "previousElementSibling", ArrowDown: "nextElementSibling" }[event.key];
    if (!from || !step) return;
    const column = /Up|Down/.test(event.key);
    let to = from[step];
    while (to && (!to.querySelector("a") || (column && to.offsetLeft !== from.offsetLeft))) to = to[step];
    if (to) { to.querySelector("a").focus(); event.preventDefault(); }
  }

  // Changes the element old until it equals fresh. Equal child elements stay in the document, so the focus,
  // the input of forms and open details are kept.
  function morph(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue; return; }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (old.nodeName === "TIME" || old.nodeName === "S") return; // tickTimes sets their text
    const byID = new Map();
    for (const child of old.children) if (child.id) byID.set(child.id, child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.id ? byID.get(child.id) : null;
      if (same) {
        if (same !== at) old.insertBefore(same, at); else at = at.nextSibling;
        morph(same, child);
      } else if (at && !at.id && !child.id && at.nodeName === child.nodeName) {
        const next = at.nextSibling;
        morph(at, child);
        at = next;
      } else {
        old.insertBefore(child, at);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  function parse(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  // The inbox has the updates that were received but are not shown yet. They wait while the page is frozen, or while a list is in use: the
  // pointer or the focus is in it, or its top is scrolled out of the window. The rows of a list in use stay in their places.
  const inbox = { main: null, title: "", pieces: new Map(), moment: "" };
  const more = document.getElementById("more"), freeze = document.getElementById("freeze");
  const frozen = () => freeze !== null && freeze.textContent === "Unfreeze";
  const rowsOf = (body) => [...body.children].filter((row) => row.id);
  const inUse = (body) => body.matches(":hover") || body.contains(document.activeElement) || body.getBoundingClientRect().top < 0;

  // Replaces the rows of the list fresh by the rows of the list old, in their old order, but with their new content. A row that fresh no
  // longer has is marked as gone. news is the number of new rows that were left out. kept is true if a row was left out or kept in an old
  // place.
  function still(old, fresh) {
    const before = rowsOf(old), after = new Map(rowsOf(fresh).map((row) => [row.id, row]));
    const ids = before.map((row) => row.id), now = [...after.keys()];
    if (ids.join("\n") === now.join("\n")) return { news: 0, kept: false };
    const news = now.filter((id) => !ids.includes(id)).length;
    fresh.replaceChildren(...before.map((row) => after.get(row.id) || gone(row)));
    return { news, kept: true };
  }
  function gone(row) {
    const copy = row.cloneNode(true);
    copy.classList.add("gone");
    return copy;
  }

  // The kind of a list is the prefix of the ids of its rows, such as event in event-7. Two lists of the same kind
  // are versions of the same list.
  const kindOf = (list) => rowsOf(list).map((row) => row.id.replace(/[-\d].*/, ""))[0] || "";

  // Changes one part of the page from old to fresh. Lists in use keep their rows (see still). Returns the sum of the results of still.
  function change(old, fresh) {
    const sum = { news: 0, kept: false };
    for (const list of old.querySelectorAll("tbody")) {
      const kind = kindOf(list);
      const other = [...fresh.querySelectorAll("tbody")].find((one) => kindOf(one) === kind);
      if (!other || !rowsOf(list).length || !inUse(list)) continue;
      const { news, kept } = still(list, other);
      sum.news += news;
      sum.kept = sum.kept || kept;
    }
    morph(old, fresh);
    return sum;
  }

  function take(message) {
    if (message.main) {
      inbox.main = message.main;
      inbox.title = message.title;
      inbox.pieces.clear();
    }
    for (const { id, html } of message.pieces || []) inbox.pieces.set(id, html);
    inbox.moment = message.moment || inbox.moment;
  }

  // Shows the updates of the inbox. If a list in use kept old rows, its part of the page stays in the inbox.
  function show() {
    const main = document.getElementById("main");
    let news = 0, kept = false;
    const tell = (part) => { news += part.news; kept = kept || part.kept; return part.kept; };
    if (inbox.main) {
      const fresh = main.cloneNode(false);
      fresh.append(parse(inbox.main));
      document.title = inbox.title + " · Dispatcher";
      if (!tell(change(main, fresh))) inbox.main = null;
    }
    for (const [id, html] of inbox.pieces) {
      const old = document.getElementById(id), fresh = parse(html).firstElementChild;
      if (!old || !fresh || !tell(change(old, fresh)) && !inbox.main) inbox.pieces.delete(id);
    }
    if (inbox.moment) main.dataset.moment = inbox.moment;
    set(more, news ? news + " new" : "Rows moved: show");
    more.hidden = !kept;
    tickTimes();
  }

  function apply(message) {
    ahead = message.now - Date.now();
    take(message);
    if (!frozen()) show();
  }

  if (more) {
    const release = () => { if (!more.hidden && !frozen()) show(); };
    more.addEventListener("click", () => { scrollTo({ top: 0, behavior: "instant" }); more.blur(); show(); });
    for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, (event) => { if (event.target.closest("tbody")) setTimeout(release); });
    document.addEventListener("scrollend", release);
  }
  if (freeze) {
    freeze.hidden = false;
    freeze.addEventListener("click", () => {
      set(freeze, frozen() ? "Freeze" : "Unfreeze");
      if (!frozen()) show();
      say("");
    });
  }

  // The stream. A hidden page has no stream; it opens one when it becomes visible, and gets the current content.
  const pulse = document.getElementById("pulse"), stale = document.getElementById("stale");
  const silence = 4500, patience = 15000; // ms; the server sends a message at least every 2 s
  let source = null, fresh = 0, again = 1000, version = body.dataset.version; // fresh: when the page was last up to date

  function say(text) {
    const word = text !== "" ? "not live" : frozen() ? "frozen" : "live";
    if (pulse) { pulse.classList.toggle("off", word !== "live"); set(pulse, word); }
    stale.hidden = text === "";
    set(stale, text);
  }
  const clock = (at) => new Date(at + ahead).toISOString().slice(0, 19).replace("T", " ") + "Z";

  function connect() {
    if (source || document.hidden) return;
    const query = new URLSearchParams({ page: body.dataset.page, version });
    source = new EventSource(body.dataset.live + "?" + query);
    fresh = fresh || Date.now();
    let heard = Date.now();
    source.onmessage = (event) => {
      heard = Date.now();
      again = 1000;
      version = ""; // after an update, the page is no longer the version that was loaded
      const message = JSON.parse(event.data);
      if (message.gone) { location.reload(); return; }
      apply(message);
      if (!message.error) fresh = heard;
      say(message.error ? "Not up to date since " + clock(fresh) + ": " + message.error : "");
    };
    source.onerror = () => retry();
    source.check = setInterval(() => {
      const silent = Date.now() - heard;
      if (silent > patience) retry();
      else if (silent > silence) say("No message from the server since " + clock(heard) + ".");
    }, 500);
  }

  function disconnect() {
    if (!source) return;
    clearInterval(source.check);
    source.close();
    source = null;
  }

  function retry() {
    disconnect();
    say("Disconnected: the page shows the state of " + clock(fresh) + ". Trying again.");
    setTimeout(connect, again * (0.5 + Math.random()));
    again = Math.min(again * 2, 15000);
  }

  setInterval(tickTimes, 1000);
  tickTimes();
  if (body.dataset.live) {
    document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
    connect();
  }
})();
