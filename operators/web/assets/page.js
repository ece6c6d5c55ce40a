// The functions that all pages share: the choice of the theme, the keys of the search, exact times in the
// reader's time zone, additional rows of forms, and buttons that copy a text.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("script");

  // The theme is that of the system until the reader chooses one. The server reads the cookie, so that the next
  // page has the chosen theme.
  const theme = document.getElementById("theme");
  const following = { "": "light", light: "dark", dark: "" };
  function name() {
    theme.textContent = "Theme: " + (root.dataset.theme || "system");
  }
  if (theme) {
    name();
    theme.addEventListener("click", () => {
      root.dataset.theme = following[root.dataset.theme || ""];
      document.cookie = "theme=" + root.dataset.theme + "; path=/; max-age=31536000; samesite=lax";
      name();
    });
  }

  // Exact times in the reader's time zone, as tooltips.
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  document.addEventListener("pointerover", (event) => {
    const time = event.target.closest ? event.target.closest("time[datetime]") : null;
    if (time) time.title = exact.format(new Date(time.dateTime)) + " · " + time.dateTime.replace("T", " ").replace(/\.\d+Z/, "Z");
  });

  // Inputs of times are in UTC: in the document, in addresses and in sent forms. The reader sees and enters times in the reader's time zone.
  const toLocal = (utc) => { const at = new Date(utc + "Z"); return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, utc.length); };
  const toUTC = (local) => new Date(local).toISOString().slice(0, local.length);
  for (const input of document.querySelectorAll("input[type=datetime-local]")) {
    if (input.defaultValue) input.value = toLocal(input.defaultValue);
    input.form.addEventListener("formdata", (event) => { if (input.value) event.formData.set(input.name, toUTC(input.value)); });
  }
  for (const name of document.querySelectorAll(".in-zone")) name.textContent = exact.resolvedOptions().timeZone;

  // Adds a row to a form: an empty copy of the last row.
  document.addEventListener("click", (event) => {
    const button = event.target.closest ? event.target.closest("button[data-add]") : null;
    if (!button) return;
    const rows = button.parentElement.querySelectorAll(button.dataset.add);
    const last = rows[rows.length - 1], next = last.cloneNode(true);
    next.setAttribute("aria-label", last.getAttribute("aria-label").replace(/\d+$/, (n) => Number(n) + 1));
    for (const input of next.querySelectorAll("input")) input.value = "";
    last.after(next);
    next.querySelector("input").focus();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest ? event.target.closest("button.copy") : null;
    if (!button) return;
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser does not allow copying";
    }
    setTimeout(() => { button.textContent = said; }, 1500);
  });

  // Ctrl-K, and / outside of inputs, move the focus to the search.
  const find = document.getElementById("find");
  document.addEventListener("keydown", (event) => {
    const entering = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
    const command = event.ctrlKey || event.metaKey;
    if (!find || event.altKey || !(command ? event.key.toLowerCase() === "k" : event.key === "/" && !entering)) return;
    event.preventDefault();
    find.focus();
    find.select();
  });
})();
