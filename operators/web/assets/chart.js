// The cursor of the charts: a line, and a readout of the values at the time of the line. The pointer and the arrow
// keys move the cursor. Without this script, the axes and the titles of the bars are readable.
"use strict";

(() => {
  const add = (id) => document.body.appendChild(Object.assign(document.createElement("div"), { id, hidden: true }));
  const cursor = add("cursor"), readout = add("readout");
  readout.setAttribute("aria-hidden", "true"); // the aria text of the focused element has the same content
  let at = null; // position of the cursor: { plot, index } in a chart, { lane, x } in the row of a slot; null if hidden
  const list = (plot, name) => plot.dataset[name].split(" ").map(Number);
  // Times are in the reader's time zone, with its name.
  const hours = new Intl.DateTimeFormat(undefined, { timeStyle: "long" }), days = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const clock = (ms, span) => (span > 86400000 ? days : hours).format(ms);
  const zoned = (text) => text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)Z/g, (_, day, time) => days.format(new Date(day + "T" + time + "Z")));

  function show(box, x, text) {
    cursor.hidden = readout.hidden = false;
    cursor.style.left = x + scrollX + "px";
    cursor.style.top = box.top + scrollY + "px";
    cursor.style.height = box.height + "px";
    readout.textContent = text;
    const own = readout.getBoundingClientRect();
    readout.style.left = Math.max(8, Math.min(x + 10, innerWidth - own.width - 8)) + scrollX + "px";
    readout.style.top = Math.max(0, box.top - own.height - 4) + scrollY + "px";
  }
  function hide() { at = null; cursor.hidden = readout.hidden = true; }

  // Shows the values of a chart at index.
  function read(plot, index) {
    const times = list(plot, "at"), span = Number(plot.dataset.span), box = plot.getBoundingClientRect();
    const i = Math.max(0, Math.min(index, times.length - 1));
    const of = (name) => list(plot, name)[i];
    at = { plot, index: i };
    let text = clock(Number(plot.dataset.from) + 1000 * times[i], span) + ": " + of("held") + " of " + of("capacity") + " held, " + of("granted") + " granted, " + of("reaped") + " taken back";
    const x = box.left + box.width * 1000 * times[i] / span;
    const acts = [...plot.querySelectorAll("line.act")].filter((line) => Math.abs(line.getBoundingClientRect().left - x) < 6).map((line) => " · " + line.textContent);
    text += acts.join("");
    show(box, x, text);
    plot.setAttribute("aria-valuenow", i);
    plot.setAttribute("aria-valuetext", text);
  }
  function nearest(plot, x) {
    const box = plot.getBoundingClientRect(), second = (x - box.left) / box.width * Number(plot.dataset.span) / 1000;
    let best = 0;
    list(plot, "at").forEach((t, i, all) => { if (Math.abs(t - second) < Math.abs(all[best] - second)) best = i; });
    return best;
  }

  // Shows the holding in the row of a slot at the x position, or that the slot was not held then.
  function readLane(lane, x) {
    const rows = lane.closest("ol"), box = lane.querySelector("svg").getBoundingClientRect();
    if (x < box.left || x > box.right) { hide(); return; }
    const unit = (x - box.left) / box.width * 1000, span = Number(rows.dataset.span);
    const held = [...lane.querySelectorAll("rect[fill]")].find((r) => unit >= r.x.baseVal.value && unit <= r.x.baseVal.value + r.width.baseVal.value);
    at = { lane, x };
    const time = clock(Number(rows.dataset.from) + unit / 1000 * span, span);
    const all = rows.getBoundingClientRect();
    show({ top: all.top, height: all.height }, x, held ? zoned(held.querySelector("title").textContent) : "Slot " + lane.querySelector("a").textContent + ": not held at " + time);
  }
  // Moves the cursor in the row of a slot. by is the number of holdings: negative to the left, positive to the right.
  function step(lane, by) {
    const bars = [...lane.querySelectorAll("rect[fill]")];
    if (!bars.length) return;
    const i = Math.max(0, Math.min((lane.dataset.read === undefined ? bars.length : Number(lane.dataset.read)) + by, bars.length - 1));
    lane.dataset.read = i;
    const box = bars[i].getBoundingClientRect(), text = zoned(bars[i].querySelector("title").textContent);
    readLane(lane, box.left + box.width / 2);
    lane.querySelector("a").setAttribute("aria-label", text);
  }

  document.addEventListener("pointermove", (event) => {
    const target = event.target.closest ? event.target : null;
    const plot = target && target.closest(".plot"), lane = target && target.closest(".lanes li");
    if (plot) read(plot, nearest(plot, event.clientX));
    else if (lane) readLane(lane, event.clientX);
    else if (at && !(document.activeElement && document.activeElement.matches(".plot, .lanes li a"))) hide();
  });
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest && event.target.closest(".plot"), lane = event.target.closest && event.target.closest(".lanes li");
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") { hide(); return; }
    if (plot && by) {
      read(plot, (at && at.plot === plot ? at.index : list(plot, "at").length) + by);
      event.preventDefault();
    } else if (lane && by && /Left|Right/.test(event.key)) {
      step(lane, by);
      event.preventDefault();
    }
  });
  document.addEventListener("focusout", hide);
  addEventListener("resize", hide);
  // Updates the readout once a second, because the stream may have changed the page.
  setInterval(() => {
    if (!at) return;
    const element = at.plot || at.lane;
    if (!element.isConnected) hide();
    else if (at.plot) read(at.plot, at.index);
    else readLane(at.lane, at.x);
  }, 1000);
})();
