// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Draws the trends of a unit with uPlot: each reading with the range of its values, its
// threshold, and the openings as bands. Drag to choose a time, which goes into the URL;
// click a band to see its opening. With the keyboard: arrows move the cursor, Enter opens
// what is under it.
"use strict";

(() => {
  const root = document.querySelector("[data-trends]");
  if (!root || typeof uPlot === "undefined") return;
  const height = 140;
  const reach = 5; // how near to a band the pointer counts as on it, in pixels

  const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const date = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
  const at = (s) => new Date(s * 1000);

  // number returns a value as the server writes it: three significant digits, or all of
  // its integer part.
  function number(v) {
    if (v === null || v === undefined) return "–";
    const abs = Math.abs(v);
    if (abs >= 100) return Math.round(v).toLocaleString("en-US");
    if (abs > 0 && abs < 0.001) return v.toPrecision(2);
    return String(Number(v.toFixed(abs >= 10 ? 1 : abs >= 1 ? 2 : 3)));
  }
  const measure = (v, unit) => number(v) + (unit && v !== null && v !== undefined ? `\u00a0${unit}` : "");

  // tick returns the text of a time on an axis: at midnight the day.
  function tick(s, step) {
    const t = at(s), time = clock.format(t);
    if (time === "00:00:00") return date.format(t).slice(5);
    return step < 60 ? time : time.slice(0, 5);
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let colours;
  function readColours() {
    colours = { text: css("--text"), dim: css("--dim"), line: css("--line"), accent: css("--accent"), soft: css("--accent-soft"), calm: css("--calm"), bg: css("--bg") };
  }
  readColours();

  const sync = uPlot.sync("trends");
  let charts = [];  // {plot, trend, box, readout}
  let answer = null;

  const keyOf = (t) => JSON.stringify([t.policy, t.monitor, t.window]);

  // openingAt returns the opening under a place of a chart, the nearest first.
  function openingAt(plot, left) {
    let best = null, distance = reach + 1;
    for (const o of answer.openings) {
      const from = plot.valToPos(o.from, "x"), to = plot.valToPos(o.to, "x");
      const d = left < from ? from - left : left > to ? left - to : 0;
      if (d < distance) [best, distance] = [o, d];
    }
    return best;
  }

  function drawBands(plot, trend) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const o of answer.openings) {
      const from = plot.valToPos(o.from, "x", true);
      const width = Math.max(plot.valToPos(o.to, "x", true) - from, 2 * devicePixelRatio);
      const mine = o.policy === trend.policy;
      ctx.fillStyle = o.kind === "baseline" ? colours.line : colours.soft;
      ctx.fillRect(from, bbox.top, width, bbox.height);
      ctx.fillStyle = o.kind === "baseline" ? colours.calm : colours.accent;
      ctx.fillRect(from, bbox.top, width, (mine ? 5 : 2) * devicePixelRatio); // its own policy's have a thicker edge
    }
    ctx.restore();
  }

  function yRange(trend) {
    let low = 0, high = 0;
    for (const series of [trend.min, trend.max, trend.threshold]) {
      for (const v of series) {
        if (v === null) continue;
        if (v > high) high = v;
        if (v < low) low = v;
      }
    }
    if (high === low) high = low + 1;
    return [low, high + 0.08 * (high - low)];
  }

  function dataOf(trend) {
    return [trend.at, trend.max, trend.min, trend.mean, trend.threshold];
  }

  // atEdge reports whether the text of a tick would be cut off, or hide that of the other axis.
  function atEdge(plot, s) {
    const pixels = (plot.width - 57) / (answer.to - answer.from);
    return (answer.to - s) * pixels < 20 || (s - answer.from) * pixels < 20;
  }

  function options(chart, width) {
    const axis = { stroke: () => colours.dim, font: "12px system-ui, sans-serif", grid: { stroke: () => colours.line, width: 1 }, ticks: { show: false } };
    return {
      width, height, legend: { show: false }, padding: [8, 1, 0, 0],
      scales: { x: { time: true, range: () => [answer.from, answer.to] }, y: { range: () => yRange(chart.trend) } },
      cursor: {
        sync: { key: sync.key, scales: ["x", null] },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        y: false,
      },
      axes: [
        { ...axis, size: 24, gap: 4, space: 90, grid: { show: false }, values: (plot, ticks, _, __, step) => ticks.map((t) => atEdge(plot, t) ? "" : tick(t, step)) },
        { ...axis, size: 56, gap: 6, space: 32, values: (_, ticks) => ticks.map((v) => number(v)) },
      ],
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: () => colours.text, width: 1.5, points: { show: false } },
        { stroke: () => colours.accent, width: 1.5, dash: [6, 4], points: { show: false } },
      ],
      bands: [{ series: [1, 2], fill: () => colours.dim + "33" }],
      hooks: {
        drawClear: [(plot) => drawBands(plot, chart.trend)],
        setCursor: [(plot) => show(chart, plot.cursor.idx, plot.cursor.left)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const from = plot.posToVal(plot.select.left, "x"), to = plot.posToVal(plot.select.left + plot.select.width, "x");
          const query = new URLSearchParams({ from: at(Math.floor(from)).toISOString(), to: at(Math.ceil(to)).toISOString() });
          location.assign(`?${query}#trends-title`);
        }],
      },
    };
  }

  // show writes what is under the cursor of a chart; without a cursor, the newest value.
  function show(chart, index, left) {
    const t = chart.trend;
    const hovered = index !== null && index !== undefined && left >= 0;
    if (!hovered) {
      index = t.at.length - 1;
    }
    const parts = [];
    let time = "";
    if (index >= 0) {
      const v = t.mean[index];
      let s = v === null ? "no reading" : measure(v, t.unit);
      if (hovered && v !== null && t.min[index] !== t.max[index]) s += ` (${number(t.min[index])} to ${number(t.max[index])})`;
      parts.push(s);
      if (t.threshold[index] !== null) parts.push(`threshold ${measure(t.threshold[index], t.unit)}`);
      time = consoleTime(at(t.at[index])).join(" ").trim();
      chart.readout.classList.toggle("over", v !== null && t.threshold[index] !== null && v > t.threshold[index]);
    }
    const o = hovered && chart.plot ? openingAt(chart.plot, left) : null;
    if (chart.plot) chart.plot.over.style.cursor = o ? "pointer" : "";
    chart.readout.textContent = parts.join(", ");
    if (chart === charts[0] || !hovered) { // the cursor is at the same time in all of them
      under.textContent = hovered ? time + (o ? ` · opening by ${o.policy}: ${o.kind === "hot" ? o.reason : o.kind}` : "") : "";
    }
  }

  function element(name, className, text) {
    const e = document.createElement(name);
    if (className) e.className = className;
    if (text !== undefined) e.textContent = text;
    return e;
  }

  function describe(chart) {
    const t = chart.trend, values = t.mean.filter((v) => v !== null);
    const figures = values.length
      ? `from ${measure(Math.min(...values), t.unit)} to ${measure(Math.max(...values), t.unit)}`
      : "no readings";
    const threshold = t.threshold.findLast((v) => v !== null);
    chart.box.setAttribute("aria-label", `${t.monitor}, policy ${t.policy}, ${t.window}: ${figures}` +
      (threshold === undefined ? "" : `, threshold ${measure(threshold, t.unit)}`) + ". Arrows move the cursor, Enter opens the opening under it.");
  }

  function build(trend) {
    const figure = element("figure", "trend");
    const caption = element("figcaption");
    const readout = element("span", "readout");
    caption.append(element("strong", "", trend.monitor), element("span", "what", [trend.policy, trend.window].filter(Boolean).join(", ")), readout);
    const box = element("div", "plot");
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-roledescription", "chart");
    figure.append(caption, box);
    root.append(figure);
    const chart = { trend, box, readout, figure, plot: null };
    chart.plot = new uPlot(options(chart, box.clientWidth), dataOf(trend), box);
    chart.plot.over.addEventListener("click", () => {
      const o = openingAt(chart.plot, chart.plot.cursor.left);
      if (o && chart.plot.select.width < 4) location.assign(`/openings/${encodeURIComponent(o.id)}`);
    });
    box.addEventListener("keydown", (e) => key(chart, e));
    box.addEventListener("focus", () => { readout.ariaLive = under.ariaLive = "polite"; });
    box.addEventListener("blur", () => { readout.ariaLive = under.ariaLive = null; });
    return chart;
  }

  function key(chart, e) {
    const { plot, trend } = chart;
    const last = trend.at.length - 1;
    if (last < 0 || e.ctrlKey || e.altKey || e.metaKey) return;
    let i = plot.cursor.left >= 0 && plot.cursor.idx !== null ? plot.cursor.idx : last;
    const step = e.shiftKey ? 20 : 1;
    switch (e.key) {
      case "ArrowLeft": i -= step; break;
      case "ArrowRight": i += step; break;
      case "Home": i = 0; break;
      case "End": i = last; break;
      case "Escape": plot.setCursor({ left: -10, top: -10 }); return;
      case "Enter": {
        const o = openingAt(plot, plot.cursor.left);
        if (o) location.assign(`/openings/${encodeURIComponent(o.id)}`);
        return;
      }
      default: return;
    }
    e.preventDefault();
    i = Math.min(Math.max(i, 0), last);
    plot.setCursor({ left: plot.valToPos(trend.at[i], "x"), top: height / 2 });
  }

  function draw() {
    const kept = new Map(charts.map((c) => [keyOf(c.trend), c]));
    const next = [];
    const empty = [];
    for (const trend of answer.trends) {
      if (!trend.mean.some((v) => v !== null)) {
        empty.push(`${trend.monitor} (${trend.policy}, ${trend.window})`);
        continue;
      }
      const chart = kept.get(keyOf(trend));
      if (chart) {
        kept.delete(keyOf(trend));
        chart.trend = trend;
        chart.plot.setData(dataOf(trend));
        next.push(chart);
      } else {
        next.push(build(trend));
      }
    }
    for (const gone of kept.values()) {
      gone.plot.destroy();
      gone.figure.remove();
    }
    charts = next;
    for (const chart of charts) {
      describe(chart);
      show(chart, chart.plot.cursor.idx, chart.plot.cursor.left);
    }
    const notes = [];
    if (answer.trends.length === 0) notes.push("No readings in this time.");
    if (empty.length) notes.push(`No readings in this time of ${empty.join(", ")}.`);
    if (answer.left_out) notes.push(`${answer.left_out} more are not drawn.`);
    note(notes.join(" "));
  }

  const under = element("p", "under"); // the time under the cursor, and the opening
  root.before(under);
  const noteBox = element("p", "empty");
  root.after(noteBox);
  function note(s) { noteBox.textContent = s; noteBox.hidden = !s; }

  async function load() {
    try {
      const r = await fetch(root.dataset.trends + location.search, { signal: AbortSignal.timeout(10_000) });
      if (!r.ok) throw new Error(`HTTP ${r.status}`);
      answer = await r.json();
      const span = document.querySelector("[data-span]");
      span.textContent = `${consoleTime(at(answer.from)).join(" ")} to ${consoleTime(at(answer.to)).join(" ")}`;
      draw();
    } catch (e) {
      note(`The trends could not be loaded: ${e.message}`);
    }
  }

  new ResizeObserver(() => {
    for (const c of charts) {
      const width = c.box.clientWidth;
      if (width && width !== c.plot.width) c.plot.setSize({ width, height });
    }
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    for (const c of charts) c.plot.redraw();
  });
  document.addEventListener("console:refreshed", () => {
    if (!new URLSearchParams(location.search).has("from")) load();
  });
  load();
})();
