// This function returns the values that a page of the dashboard shows. The key
// of a value is its place: the id of the element around it, and its label.
// Times are exact.
((page) => {
  const found = {};
  const text = (element) => {
    const copy = element.cloneNode(true);
    for (const time of copy.querySelectorAll("time")) time.textContent = time.dateTime;
    return copy.textContent.replace(/\s+/g, " ").trim();
  };
  const place = (element) => element.closest("main [id]")?.id ?? "";
  const main = page.getElementById("main");
  // The elements #waiting and #results are left out: their numbers come from
  // samples, and have tests of their own.
  const all = (selector) => [...main.querySelectorAll(selector)].filter((element) => !element.closest("#waiting, #results"));
  for (const pair of all("dl > div")) {
    found[place(pair) + "/" + text(pair.querySelector("dt"))] = text(pair.querySelector("dd"));
  }
  for (const figure of main.querySelectorAll(".figure")) found[place(figure) + "/figure"] = text(figure);
  for (const pill of all(".pills li, .legend li")) {
    const number = pill.querySelector("b"), label = pill.cloneNode(true);
    for (const part of label.querySelectorAll("b, i")) part.remove();
    if (number) found["count/" + text(label)] = text(number);
  }
  for (const table of all("table")) {
    const names = [...table.querySelectorAll("thead th")].map(text);
    [...table.querySelectorAll("tbody tr")].forEach((row, i) => {
      const cells = [...row.cells];
      if (!row.id) { found[place(table) + "/line " + i] = cells.map(text).join(" "); return; }
      cells.forEach((cell, n) => { found[row.id + "/" + names[n]] = text(cell); });
    });
  }
  for (const bar of all("svg.progress")) found[place(bar) + "/progress"] = bar.getAttribute("aria-label").trim();
  const state = main.querySelector(".path [aria-current]"), chart = main.querySelector("#chart svg.curve > title");
  if (state) found["task/state"] = text(state);
  if (chart) found["chart/now"] = chart.textContent.replace(/.* now (\d+) of .*/, "$1");
  for (const slot of main.querySelectorAll(".grid .cell[id]")) {
    const held = slot.querySelector("a[data-slot]")?.dataset;
    found[slot.id] = held ? [held.device, held.task, held.token, held.since, held.until].join(" ") : slot.classList.contains("reserved") ? "reserved" : "free";
  }
  for (const card of main.querySelectorAll(".card")) {
    const cells = [...card.querySelectorAll(".grid .cell")], count = (look) => cells.filter((c) => c.classList.contains(look)).length;
    if (!cells.length) continue;
    found[card.id + "/cells"] = String(cells.length - count("free") - count("reserved"));
    found[card.id + "/reserved"] = String(count("reserved"));
  }
  return found;
})
