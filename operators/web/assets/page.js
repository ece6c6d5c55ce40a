// Offers what a page has beside its content: the theme, the search by a key, exact times in the
// reader's zone, and copying of what is to be typed elsewhere.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("script");

  // The theme: that of the system, until it is chosen. The server reads the cookie, so
  // that the next page comes in it.
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

  // Exact times in the zone of the reader, on hover.
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  document.addEventListener("pointerover", (event) => {
    const time = event.target.closest ? event.target.closest("time[datetime]") : null;
    if (time) time.title = exact.format(new Date(time.dateTime)) + " · " + time.dateTime.replace("T", " ").replace(/\.\d+Z/, " UTC");
  });

  // A further row of a form: a copy of the last one, empty.
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
      button.textContent = "The browser does not allow it";
    }
    setTimeout(() => { button.textContent = said; }, 1500);
  });

  // Ctrl-K, and / where nothing is entered, lead to the search.
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
