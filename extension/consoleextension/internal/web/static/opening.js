// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// The page of an opening, and the report: what stands around the flame graph.
"use strict";

(() => {
  const offline = location.protocol === "file:" || document.documentElement.hasAttribute("data-report");

  // The URL has what is seen, so that it can be sent to a colleague.
  function setURL(changes) {
    if (offline) return;
    const url = new URL(location.href);
    for (const [key, value] of Object.entries(changes)) {
      if (value) url.searchParams.set(key, value); else url.searchParams.delete(key);
    }
    history.replaceState(null, "", url);
  }

  const flameOf = (e) => (e.closest("[data-profile]") ?? document).querySelector("section.flame")?.flame;
  const tableOf = (e) => (e.closest("[data-profile]") ?? document).querySelector("[data-functions]");

  function mark(table, name) {
    for (const row of table.querySelectorAll("tr[data-function]")) {
      const is = name !== "" && row.dataset.function === name;
      row.classList.toggle("current", is);
      const link = row.querySelector("a");
      if (is) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }

  // load replaces the table of functions by that of another URL of this page.
  let loading;
  async function load(table, url) {
    loading?.abort();
    loading = new AbortController();
    try {
      const answer = await fetch(url, { headers: { Accept: "text/html" }, signal: loading.signal });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const newer = page.querySelector("[data-functions]");
      const active = document.activeElement?.closest("th[data-key]")?.dataset.key;
      table.replaceChildren(...newer.childNodes);
      table.querySelector(`th[data-key="${active}"] a`)?.focus({ preventScroll: true });
    } catch (e) {
      if (e.name !== "AbortError" && url !== location.href) location.assign(url);
    }
  }

  // filter hides the rows of a table that do not match; it sees only what is in the page.
  function filter(table, text) {
    for (const row of table.querySelectorAll("tr[data-function]")) {
      row.hidden = !row.dataset.function.toLowerCase().includes(text);
    }
  }

  // sort sorts the rows that are in the page.
  function sort(table, column) {
    const head = [...column.parentElement.children];
    const index = head.indexOf(column);
    const number = (cell) => Number.parseFloat(cell.dataset.sort.replace("−", "-").replace("±", "")) || 0;
    const rows = [...table.querySelectorAll("tbody tr")];
    rows.sort((a, b) => index === 0
      ? a.dataset.function.localeCompare(b.dataset.function)
      : number(b.children[index]) - number(a.children[index]));
    table.querySelector("tbody").replaceChildren(...rows);
    for (const th of head) {
      th.removeAttribute("aria-sort");
      th.querySelector("[aria-hidden]")?.remove();
    }
    column.setAttribute("aria-sort", index === 0 ? "ascending" : "descending");
    const arrow = document.createElement("span");
    arrow.setAttribute("aria-hidden", "true");
    arrow.textContent = index === 0 ? " ↑" : " ↓";
    column.querySelector("a").append(arrow);
  }

  // What the reader chose since the page was loaded goes along to another phase, thread
  // or comparison.
  const kept = ["function", "view", "q", "sort"];
  document.addEventListener("click", (e) => {
    const link = e.target.closest(".phases a, .waits a, .threads a");
    if (!link || offline) return;
    const url = new URL(link.href), now = new URL(location.href).searchParams;
    for (const key of kept) {
      if (now.get(key)) url.searchParams.set(key, now.get(key)); else url.searchParams.delete(key);
    }
    link.href = url;
  });
  document.addEventListener("submit", (e) => {
    if (!e.target.matches(".compare")) return;
    const now = new URL(location.href).searchParams;
    for (const key of kept) {
      let input = e.target.elements.namedItem(key);
      if (!input) {
        input = document.createElement("input");
        input.type = "hidden";
        input.name = key;
        e.target.append(input);
      }
      input.value = now.get(key) ?? "";
      input.disabled = input.value === "";
    }
  });

  document.addEventListener("flame:changed", (e) => {
    const table = tableOf(e.target);
    const { key, value } = e.detail;
    if (key === "view") {
      setURL({ view: value });
      return;
    }
    if (key === "function") {
      setURL({ function: value });
      if (table) mark(table, value);
      return;
    }
    if (!table) return;
    const before = new URLSearchParams(location.search).get("q") ?? "";
    setURL({ q: value });
    if (offline) filter(table, value);
    else if (before.toLowerCase() !== value) {
      filter(table, value);
      clearTimeout(table.due);
      table.due = setTimeout(() => load(table, location.href), 250);
    }
  });

  document.addEventListener("click", (e) => {
    if (e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0) return;
    const link = e.target.closest("[data-functions] a, [data-select] a");
    if (!link) return;
    const table = tableOf(link);
    const name = (link.closest("tr[data-function]") ?? link).dataset.function;
    if (name !== undefined) {
      const flame = flameOf(link);
      if (!flame?.data) return;
      e.preventDefault();
      flame.section.scrollIntoView({ block: "nearest" });
      flame.select(name);
      setURL({ function: name });
      mark(table, name);
      return;
    }
    const column = link.closest("th[data-key]");
    if (offline && column) {
      e.preventDefault();
      sort(table, column);
    } else if (column || link.hasAttribute("data-more")) {
      e.preventDefault();
      const url = new URL(link.href);
      setURL({ sort: url.searchParams.get("sort"), rows: url.searchParams.get("rows") });
      load(table, location.href);
    }
  });

  // While the opening lasts, its profiles grow.
  let shown = document.getElementById("numbers")?.textContent;
  document.addEventListener("console:refreshed", () => {
    const now = document.getElementById("numbers")?.textContent;
    if (now === shown) return;
    shown = now;
    const flame = document.querySelector("section.flame")?.flame;
    if (!flame) {
      location.reload(); // the first profile has arrived
      return;
    }
    flame.reload();
    load(document.querySelector("[data-functions]"), location.href);
  });

  document.addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.matches("input, select, textarea")) return;
    const input = document.querySelector("[data-search]");
    if (!input) return;
    e.preventDefault();
    input.focus();
    input.select();
  });

  for (const button of document.querySelectorAll("[data-copy]")) {
    const text = document.getElementById(button.dataset.copy);
    // The server knows the address by which it was asked, and not what is before it.
    if (!offline) text.textContent = text.textContent.replaceAll(`${text.dataset.origin}/`, `${location.origin}/`);
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        document.getSelection().selectAllChildren(text);
        button.textContent = "Press Ctrl-C";
      }
    });
  }

  for (const option of document.querySelectorAll("option[data-time]")) {
    option.textContent = option.textContent.replace(/^[\d-]+ [\d:]+ UTC/, consoleTime(new Date(option.dataset.time)).join(" ").trim());
  }
})();
