// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// What every page does: times in the zone of the reader with UTC beside them, and a refresh
// every 10 seconds while the page is seen. Pages that draw listen for "console:refreshed"
// on document, and call consoleTime.
"use strict";

(() => {
  const refreshEvery = 10_000;
  const store = "hotprofile.refresh"; // "off" if the reader switched it off

  const today = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

  // consoleTime returns a time in the zone of the reader, and in UTC: without the day if it
  // is the same, and empty if all of it is.
  globalThis.consoleTime = (t) => {
    const [day, time] = [today.format(t), clock.format(t)];
    const [utcDay, utcTime] = t.toISOString().slice(0, 19).split("T");
    if (day === utcDay && time === utcTime) return [`${day} ${time} UTC`, ""];
    return [`${day} ${time}`, `(${day === utcDay ? "" : `${utcDay} `}${utcTime} UTC)`];
  };

  // local replaces the UTC times of a part of the page.
  function local(root) {
    for (const e of root.querySelectorAll("time[datetime]")) {
      const t = new Date(e.dateTime);
      if (Number.isNaN(t.getTime())) continue;
      const [here, utc] = consoleTime(t);
      if (e.classList.contains("ago")) {
        e.title = `${here} ${utc}`;
      } else {
        e.textContent = here;
        if (utc) {
          const beside = document.createElement("span");
          beside.className = "utc";
          beside.textContent = utc;
          e.append(" ", beside);
        }
      }
    }
  }

  // path names an element by where it is below root, to find it again after a refresh.
  function path(root, e) {
    const steps = [];
    for (; e && e !== root; e = e.parentElement) steps.unshift([...e.parentElement.children].indexOf(e));
    return steps;
  }

  // replace puts the live parts of a newer page into this one, and returns what there is
  // to announce.
  function replace(newer) {
    const announcements = [];
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = newer.getElementById(part.id);
      if (!other) continue;
      if ((other.dataset.announce ?? "") !== (part.dataset.announce ?? "")) announcements.push(other.dataset.announce ?? "");
      local(other);
      if (part.innerHTML === other.innerHTML && part.dataset.announce === other.dataset.announce) continue;
      const selection = document.getSelection();
      if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) continue; // do not take away what is being copied
      const active = part.contains(document.activeElement) ? path(part, document.activeElement) : null;
      const scrolled = [...part.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
      const open = [...part.querySelectorAll("details")].map((e) => e.open);
      part.replaceChildren(...other.childNodes);
      if (other.dataset.announce !== undefined) part.dataset.announce = other.dataset.announce;
      part.querySelectorAll(".scroll").forEach((e, i) => { e.scrollLeft = scrolled[i] ?? 0; });
      part.querySelectorAll("details").forEach((e, i) => { e.open = open[i] ?? e.open; });
      active?.reduce((e, i) => e?.children[i], part)?.focus({ preventScroll: true });
    }
    return announcements.filter(Boolean);
  }

  function refresh(box) {
    const on = box.querySelector("input");
    const status = box.querySelector("[role=status]");
    box.hidden = false;
    try { on.checked = localStorage.getItem(store) !== "off"; } catch { /* storage is off */ }
    let timer = 0, running = false, again = false;
    const due = () => {
      clearTimeout(timer);
      if (on.checked && !document.hidden) timer = setTimeout(load, refreshEvery);
    };
    async function load() {
      if (running) {
        again = true;
        return;
      }
      running = true;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(refreshEvery) });
        if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
        const said = replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
        if (said.length) status.textContent = said.join(". ");
        box.classList.remove("failed");
        box.title = "";
        document.dispatchEvent(new CustomEvent("console:refreshed"));
      } catch (e) {
        if (!box.classList.contains("failed")) status.textContent = "The console does not answer.";
        box.classList.add("failed");
        box.title = `the last refresh failed: ${e.message}`;
      }
      running = false;
      if (again) {
        again = false;
        load();
        return;
      }
      due();
    }
    on.addEventListener("change", () => {
      try { localStorage.setItem(store, on.checked ? "on" : "off"); } catch { /* storage is off */ }
      if (on.checked) load(); else due();
    });
    for (const form of document.querySelectorAll("form[role=search]")) { // found while typing
      let typing = 0;
      form.addEventListener("input", () => {
        clearTimeout(typing);
        typing = setTimeout(() => {
          const query = new URLSearchParams([...new FormData(form)].filter(([, v]) => v !== ""));
          history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
          load();
        }, 200);
      });
    }
    document.addEventListener("visibilitychange", () => { if (on.checked && !document.hidden) load(); else due(); });
    due();
  }

  local(document);
  for (const e of document.querySelectorAll("[data-zone]")) {
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
    e.textContent = name === "UTC" ? "times are in UTC" : `times are in ${name}, with UTC beside them`;
  }
  const box = document.querySelector("[data-refresh]");
  if (box) refresh(box);
})();
