// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Flame graphs: one for each section.flame, of the JSON at data-flame, or of the one in a
// script element of type application/json in it. Nothing of a profile is used as markup.
//
// Why not a library: tried with the profile in flame/testdata, 3,014 frames.
// - d3-flame-graph 5.0.0 is 132 KB with the 13 modules that it needs. It inserts a style
//   element by script, which the content security policy refuses, and its other build
//   needs a bundler. It draws five elements a frame, has no keyboard and no roles, takes
//   a search for a regular expression ("operator(" throws), and cannot show what only the
//   other profile has.
// - The pages of google/pprof are internal to its module, need inline scripts, and come
//   with a server that reads files and runs tools.
// - speedscope is an application of 490 KB of script that draws with WebGL, without a
//   comparison, and nothing of it is in the document for a screen reader.
"use strict";

(() => {
  const thin = 1.5;    // frames narrower than this many pixels are not drawn
  const labelled = 36; // and those narrower than this have no text

  // Formats, as in opening_types.go.
  const digits = (v, n) => Number(v.toFixed(n)).toLocaleString("en-US", { maximumFractionDigits: n });
  const three = (v) => digits(v, v >= 100 ? 0 : v >= 10 ? 1 : 2);
  function seconds(v) {
    if (v === 0) return "0 s";
    if (v < 1e-6) return `${three(v * 1e9)} ns`;
    if (v < 1e-3) return `${three(v * 1e6)} µs`;
    if (v < 1) return `${three(v * 1e3)} ms`;
    return `${three(v)} s`;
  }
  function bytes(v) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    for (; v >= 1024 && i < 4; i++) v /= 1024;
    return `${three(v)} ${units[i]}`;
  }
  function amount(unit, v) {
    switch (unit) {
      case "nanoseconds": return seconds(v / 1e9);
      case "microseconds": return seconds(v / 1e6);
      case "milliseconds": return seconds(v / 1e3);
      case "seconds": return seconds(v);
      case "bytes": return bytes(v);
      case "count": case "": return digits(v, 0);
    }
    return `${digits(v, 0)} ${unit}`;
  }
  function percent(share) {
    const v = 100 * share;
    if (v === 0) return "0 %";
    if (v < 0.01) return "< 0.01 %";
    return `${v.toFixed(v < 10 ? 2 : 1)} %`;
  }
  function points(here, there) {
    const v = 100 * (here - there);
    if (Math.abs(v) < 0.005) return "±0";
    const s = Math.abs(v).toFixed(Math.abs(v) >= 10 ? 1 : 2);
    return v < 0 ? `−${s}` : `+${s}`;
  }
  // chance reports whether chance explains a difference of shares, as in flame.Chance.
  function chance(here, there, m, n) {
    if (!(m > 0 && n > 0)) return false;
    const p = (here * m + there * n) / (m + n);
    return (here - there) ** 2 <= 4 * p * (1 - p) * (1 / m + 1 / n);
  }
  function change(here, there, m, n) {
    if (here + there === 0 || chance(here, there, m, n)) return "same";
    const r = (here - there) / (here + there), a = Math.abs(r);
    if (a < 0.1) return "same";
    return (r < 0 ? "less" : "more") + (a >= 0.7 ? 3 : a >= 0.35 ? 2 : 1);
  }

  // short returns a function's name without the path of its package, for frames.
  function short(name) {
    const go = /^(?:[\w.~-]+\/)+(?=[\w.-]+\.)/.exec(name);
    if (go) return name.slice(go[0].length);
    const java = /^(?:[a-z_][\w$]*\.){2,}(?=[A-Z])/.exec(name);
    return java ? name.slice(java[0].length) : name;
  }

  // family returns what the colour of a frame depends on: the package, or the beginning
  // of a namespace.
  function family(name, file) {
    if (file.startsWith("[kernel") || name.startsWith("[kernel")) return "kernel";
    const go = /^((?:[\w.~-]+\/)*[\w~-]+)\./.exec(name);
    if (go) return go[1];
    const cpp = /^[^:(<]+(?=::)/.exec(name);
    if (cpp) return cpp[0];
    return file.slice(file.lastIndexOf("/") + 1);
  }

  function hash(s) {
    let h = 2166136261;
    for (let i = 0; i < s.length; i++) h = Math.imul(h ^ s.charCodeAt(i), 16777619);
    return (h ^ (h >>> 15)) >>> 0;
  }

  class Flame {
    constructor(section) {
      this.section = section;
      this.graph = section.querySelector("[data-graph]");
      this.details = section.querySelector("[data-details]");
      this.introduction = [...this.details.childNodes];
      this.found = section.querySelector("[data-found]");
      this.input = section.querySelector("[data-search]");
      this.there = section.dataset.there;
      this.what = section.dataset.what;
      this.zoomed = 0;
      this.cursor = -1;
      this.selected = "";
      this.chosen = "";  // the function that callers and callees are shown of
      this.kind = "";    // callers, callees, or empty for the whole
      this.width = "here";
      this.views = [...section.querySelectorAll("[data-view]")];
    }

    // read returns the tree.
    async read() {
      const embedded = this.section.querySelector("script[type='application/json']");
      if (embedded) return JSON.parse(embedded.textContent);
      const answer = await fetch(this.section.dataset.flame, { headers: { Accept: "application/json" } });
      if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
      return answer.json();
    }

    async start() {
      try {
        this.take(await this.read());
      } catch (e) {
        this.message(`The flame graph could not be loaded: ${e.message}. Load the page again; the table below has its figures.`);
        return;
      }
      this.section.querySelector(".flame-tools").hidden = false;
      this.canvas = document.createElement("div");
      this.canvas.className = "canvas";
      this.graph.replaceChildren(this.canvas);
      this.listen();
      this.search(this.input.value, false);
      this.draw();
      const { function: name, shown } = this.section.dataset;
      if (name) this.select(name, false);
      if (name && shown) this.view(shown, false);
      new ResizeObserver(() => { if (this.graph.clientWidth !== this.drawnWidth) this.draw(); }).observe(this.graph);
    }

    // reload draws the tree again that has grown, unless the reader is within it.
    async reload() {
      if (!this.whole || this.kind !== "" || this.zoomed !== 0 || this.cursor >= 0) return;
      try {
        this.take(await this.read());
      } catch {
        return; // the next refresh tries again
      }
      this.search(this.input.value);
    }

    message(text) {
      const p = document.createElement("p");
      p.textContent = text;
      this.details.replaceChildren(p);
    }

    // take begins with a tree.
    take(data) {
      this.whole = data;
      this.compared = Boolean(data.total_there);
      this.labels = data.names.map(short);
      this.classes = data.names.map((name, i) => {
        const f = family(name, data.files[i]);
        return f === "kernel" ? "f-kernel" : `f${hash(f) % 8}`;
      });
      this.legend(data);
      this.lower = data.names.map((name) => name.toLowerCase());
      this.matches = null;
      const pruned = this.section.querySelector("[data-pruned]");
      pruned.textContent = data.pruned > 0
        ? `${digits(data.pruned, 0)} frames below ${percent(data.min_share)} are not drawn, ${percent(this.share(data.pruned_self))} together.` : "";
      this.use(data);
    }

    // legend names the packages of each colour, those with the largest share first.
    legend(data) {
      const list = this.section.querySelector("[data-legend]");
      if (!list) return;
      const colours = new Map(); // of the class: the sum of its families
      for (let i = 1; i < data.depth.length; i++) {
        const f = data.function[i], colour = this.classes[f], name = family(data.names[f], data.files[f]) || "unknown";
        if (!colours.has(colour)) colours.set(colour, { self: 0, families: new Map() });
        const sum = colours.get(colour);
        sum.self += data.self[i];
        sum.families.set(name, (sum.families.get(name) ?? 0) + data.self[i]);
      }
      list.replaceChildren(...[...colours].sort(([, a], [, b]) => b.self - a.self).map(([colour, sum]) => {
        const item = document.createElement("li");
        const names = [...sum.families].sort(([, a], [, b]) => b - a).map(([name]) => name);
        item.className = colour;
        item.textContent = names.slice(0, 2).map((n) => n.slice(-40)).join(", ") + (names.length > 2 ? ", …" : "");
        item.title = `${percent(this.share(sum.self))}: ${names.slice(0, 20).join(", ")}`;
        return item;
      }));
    }

    // use prepares the arrays of a tree, or of a part of it, which are in preorder.
    use(data) {
      this.data = data;
      const n = data.depth.length;
      this.parent = new Int32Array(n);
      this.end = new Int32Array(n); // the first node that is not below
      const path = [];
      for (let i = 0; i < n; i++) {
        const d = data.depth[i];
        for (let k = path.length - 1; k >= d; k--) this.end[path[k]] = i;
        path.length = d;
        this.parent[i] = d > 0 ? path[d - 1] : -1;
        path.push(i);
      }
      for (const i of path) this.end[i] = n;
      this.place();
    }

    // part returns the tree of what calls a function, or of what it calls: all its frames
    // are one, and so are the frames of the same function above or below them.
    part(kind, f) {
      const { depth, function: functions, line, total, self, total_there: totalThere, self_there: selfThere } = this.whole;
      const node = (of) => ({ f: of, line: 0, most: 0, total: 0, self: 0, totalThere: 0, selfThere: 0, below: new Map() });
      const add = (to, i, from, own) => {
        to.total += total[from];
        if (totalThere) to.totalThere += totalThere[from];
        if (own) to.self += self[i];
        if (own && selfThere) to.selfThere += selfThere[i];
        if (total[from] > to.most || to.line === 0) {
          to.most = total[from];
          to.line = line[i];
        }
      };
      const child = (of, g) => {
        if (!of.below.has(g)) of.below.set(g, node(g));
        return of.below.get(g);
      };
      const merge = (to, i) => {
        add(to, i, i, true);
        for (let k = i + 1; k < this.end[i]; k = this.end[k]) merge(child(to, functions[k]), k);
      };
      const root = node(-1);
      for (let i = 1; i < depth.length;) {
        if (functions[i] !== f) { i++; continue; }
        add(root, i, i, false);
        let to = child(root, f);
        if (kind === "callees") {
          merge(to, i);
        } else {
          add(to, i, i, false);
          for (let k = this.parent[i]; k > 0; k = this.parent[k]) {
            to = child(to, functions[k]);
            add(to, k, i, false);
          }
        }
        i = this.end[i];
      }
      const out = { ...this.whole, depth: [], function: [], line: [], total: [], self: [] };
      if (totalThere) Object.assign(out, { total_there: [], self_there: [] });
      const write = (n, d) => {
        out.depth.push(d);
        out.function.push(n.f);
        out.line.push(n.line);
        out.total.push(n.total);
        out.self.push(n.self);
        if (totalThere) {
          out.total_there.push(n.totalThere);
          out.self_there.push(n.selfThere);
        }
        const below = [...n.below.values()].sort((a, b) => (this.whole.names[a.f] < this.whole.names[b.f] ? -1 : 1));
        for (const b of below) write(b, d + 1);
      };
      write(root, 0);
      return out;
    }

    // view shows the callers or callees of the chosen function, or the whole again.
    view(kind, focus = true) {
      const f = this.whole.names.indexOf(this.chosen);
      if (kind !== "" && f < 0) return;
      if (this.kind !== "") {
        this.kind = "";
        this.use(this.whole); // callers and callees are those of the whole
      }
      if (kind !== "") {
        this.use(this.part(kind, f));
        this.kind = kind;
      }
      this.zoomed = 0;
      this.cursor = -1;
      this.selected = "";
      for (const button of this.views) button.setAttribute("aria-pressed", String(button.dataset.view === kind));
      this.draw();
      if (kind !== "") this.move(1, focus);
      this.changed("view", kind);
    }

    // choose remembers a function for callers and callees.
    choose(name) {
      this.chosen = name;
      for (const button of this.views) {
        button.disabled = name === "";
        button.title = name === "" ? "Choose a function first: click its frame, or its row in the table" : `${button.dataset.view} of ${name}`;
      }
    }

    share(v) { return this.whole.total[0] > 0 ? v / this.whole.total[0] : 0; }
    shareThere(v) { return this.whole.total_there[0] > 0 ? v / this.whole.total_there[0] : 0; }

    // place computes where frames begin, in the unit of the values.
    place() {
      this.value = this.width === "there" ? this.data.total_there : this.data.total;
      const n = this.value.length;
      this.x = new Float64Array(n);
      const next = new Float64Array(n);
      for (let i = 1; i < n; i++) {
        const p = this.parent[i];
        this.x[i] = next[p];
        next[p] += this.value[i];
        next[i] = this.x[i];
      }
    }

    // draw shows what is below the zoomed frame, and above it its callers.
    draw() {
      const pixels = this.graph.clientWidth;
      this.drawnWidth = pixels;
      const { depth, function: functions } = this.data;
      const z = this.zoomed, all = this.value[z];
      const fragment = document.createDocumentFragment();
      this.drawn = new Map();
      let deepest = depth[z];
      const add = (i, left, width, outer) => {
        const frame = document.createElement("div");
        const f = functions[i];
        const px = width * pixels;
        let kind = "";
        let text = `${this.rootName()}, ${amount(this.data.unit, this.value[i])}`;
        if (f >= 0) {
          kind = this.classes[f];
          text = this.labels[f];
          if (this.compared) {
            const here = this.share(this.data.total[i]), there = this.shareThere(this.data.total_there[i]);
            kind = change(here, there, this.data.samples, this.data.samples_there);
            if (kind !== "same") text = `${points(here, there)} ${text}`;
          }
        }
        frame.className = `frame ${kind}`;
        if (outer) frame.classList.add("outer");
        if (this.marked(i)) frame.classList.add("marked");
        if (px >= labelled) frame.textContent = text; else frame.classList.add("thin");
        frame.style.left = `${100 * left}%`;
        frame.style.width = `${100 * width}%`;
        frame.style.top = `calc(var(--row) * ${depth[i]})`;
        frame.dataset.i = i;
        fragment.append(frame);
        this.drawn.set(i, frame);
        deepest = Math.max(deepest, depth[i]);
      };
      const outer = [];
      for (let i = this.parent[z]; i >= 0; i = this.parent[i]) outer.unshift(i);
      for (const i of outer) add(i, 0, 1, true);
      if (all > 0) {
        for (let i = z; i < this.end[z];) {
          const width = this.value[i] / all;
          if (width * pixels < thin) {
            i = this.end[i];
            continue;
          }
          add(i, (this.x[i] - this.x[z]) / all, width, false);
          i++;
        }
      }
      this.canvas.style.height = `calc(var(--row) * ${deepest + 1})`;
      this.canvas.replaceChildren(fragment);
      this.graph.classList.toggle("marking", this.matches !== null || this.selected !== "");
      if (this.drawn.has(this.cursor)) this.drawn.get(this.cursor).classList.add("cursor");
    }

    rootName() { return this.kind === "" ? `all ${this.what}` : `${this.kind} of ${this.chosen}`; }

    marked(i) {
      const f = this.data.function[i];
      if (f < 0) return false;
      if (this.selected !== "") return this.data.names[f] === this.selected;
      return this.matches !== null && this.matches[f];
    }

    // sum returns the value of all frames for which is holds, without those below them.
    sum(is) {
      let here = 0, there = 0, frames = 0;
      for (let i = 0; i < this.end[0];) {
        if (!is(i)) { i++; continue; }
        here += this.data.total[i];
        if (this.compared) there += this.data.total_there[i];
        frames++;
        i = this.end[i];
      }
      return { here, there, frames };
    }

    describe(sum) {
      let text = percent(this.share(sum.here));
      if (this.compared) {
        const here = this.share(sum.here), there = this.shareThere(sum.there);
        text += `, ${this.there} ${percent(there)}, ${points(here, there)}`;
      }
      return text;
    }

    search(text, redraw = true) {
      text = text.trim().toLowerCase();
      if (text === "") {
        this.matches = null;
        this.found.textContent = "";
      } else {
        this.matches = this.lower.map((name) => name.includes(text));
        const sum = this.sum((i) => this.data.function[i] >= 0 && this.matches[this.data.function[i]]);
        this.found.textContent = sum.frames > 0 ? `found ${this.describe(sum)}` : "not found";
      }
      this.selected = "";
      if (redraw) this.draw();
      this.changed("q", text);
    }

    // select marks every frame of a function, and moves to the widest.
    select(name, focus = true) {
      const known = name.length > 250 ? this.data.names.find((n) => n.endsWith("…") && name.startsWith(n.slice(0, -1))) ?? name : name;
      if (this.kind !== "") this.view("", false);
      this.selected = known;
      this.choose(known);
      if (name === "") {
        this.draw();
        return;
      }
      let widest = -1;
      const is = (i) => this.data.function[i] >= 0 && this.data.names[this.data.function[i]] === known;
      for (let i = 0; i < this.end[0]; i++) {
        if (is(i) && (widest < 0 || this.value[i] > this.value[widest])) widest = i;
      }
      if (widest < 0) {
        this.selected = "";
        this.choose("");
        this.draw();
        this.message(`${name} is not drawn: it is in no frame above ${percent(this.data.min_share)}.`);
        return;
      }
      if (!this.within(widest, this.zoomed)) this.zoomed = 0;
      this.draw();
      if (!this.drawn.has(widest)) this.zoom(this.parent[widest]);
      this.move(widest, focus);
    }

    within(i, root) { return i >= root && i < this.end[root]; }

    zoom(i) {
      this.zoomed = this.value[i] > 0 ? i : 0;
      this.draw();
    }

    reset() {
      if (this.kind !== "") this.view("");
      this.choose("");
      this.zoomed = 0;
      this.selected = "";
      this.input.value = "";
      this.search("", false);
      this.draw();
      this.changed("function", "");
      this.cursor = -1;
      this.canvas.querySelector(".cursor")?.classList.remove("cursor");
      this.details.replaceChildren(...this.introduction);
    }

    // move puts the cursor of the keyboard on a frame.
    move(i, announce = true) {
      this.drawn.get(this.cursor)?.classList.remove("cursor");
      this.cursor = i;
      const frame = this.drawn.get(i);
      if (frame) {
        frame.classList.add("cursor");
        const top = frame.offsetTop, bottom = top + frame.offsetHeight;
        if (top < this.graph.scrollTop) this.graph.scrollTop = top;
        if (bottom > this.graph.scrollTop + this.graph.clientHeight) this.graph.scrollTop = bottom - this.graph.clientHeight;
      }
      this.tell(i, announce);
    }

    // tell shows a frame in the details, which are announced only for the keyboard.
    tell(i, announce) {
      const { data } = this;
      const f = data.function[i];
      const line = (...parts) => {
        const p = document.createElement("p");
        p.append(...parts);
        return p;
      };
      const name = document.createElement("bdi");
      name.className = "name";
      name.textContent = f < 0 ? this.rootName() : data.names[f];
      const where = document.createElement("bdi");
      where.className = "where";
      if (f >= 0) where.textContent = data.files[f] + (data.line[i] > 0 && data.files[f] ? `:${data.line[i]}` : "");
      const figures = (title, here, there) => {
        let text = `${title} ${percent(this.share(here))} (${amount(data.unit, here)})`;
        if (this.compared) {
          const a = this.share(here), b = this.shareThere(there);
          text += `, ${this.there} ${percent(b)}, difference ${points(a, b)} points`;
        }
        return text;
      };
      const lines = [
        line(name, where),
        line(figures(this.kind === "callers" ? `of ${this.chosen}, called through it,` : "total", data.total[i], data.total_there?.[i])),
      ];
      if (this.kind !== "callers") lines[1].append(" · ", figures("self", data.self[i], data.self_there?.[i]));
      if (f >= 0 && this.kind === "") {
        const everywhere = this.sum((k) => data.function[k] === f);
        if (everywhere.frames > 1) lines[1].append(` · in ${everywhere.frames} places ${this.describe(everywhere)}`);
      }
      this.details.setAttribute("aria-live", announce ? "polite" : "off");
      this.details.replaceChildren(...lines);
    }

    changed(key, value) {
      this.section.dispatchEvent(new CustomEvent("flame:changed", { bubbles: true, detail: { key, value } }));
    }

    open(i) {
      this.zoom(i);
      this.move(i);
      const f = this.data.function[i];
      const name = f < 0 ? "" : this.data.names[f];
      if (this.kind !== "" && name === "") return;
      this.choose(name);
      this.changed("function", name);
    }

    listen() {
      this.graph.addEventListener("click", (e) => {
        const frame = e.target.closest("[data-i]");
        if (frame) this.open(Number(frame.dataset.i));
      });
      // A frame that comes to lie below a pointer that rests has not been pointed at.
      let x = -1, y = -1;
      document.addEventListener("pointermove", (e) => { x = e.clientX; y = e.clientY; }, { passive: true });
      this.graph.addEventListener("pointerover", (e) => {
        const frame = e.target.closest("[data-i]");
        if (frame && (e.clientX !== x || e.clientY !== y)) this.tell(Number(frame.dataset.i), false);
      });
      this.graph.addEventListener("pointerleave", () => { if (this.cursor >= 0) this.tell(this.cursor, false); });
      this.graph.addEventListener("focus", () => { if (this.cursor < 0 && this.graph.matches(":focus-visible")) this.move(this.zoomed); });
      this.graph.addEventListener("keydown", (e) => this.key(e));
      this.input.addEventListener("input", () => this.search(this.input.value));
      this.input.addEventListener("keydown", (e) => {
        if (e.key === "Escape") { this.reset(); e.preventDefault(); }
        if (e.key === "Enter") { this.first(); e.preventDefault(); }
      });
      for (const button of this.views) {
        button.addEventListener("click", () => this.view(button.getAttribute("aria-pressed") === "true" ? "" : button.dataset.view));
      }
      this.section.querySelector("[data-reset]").addEventListener("click", () => this.reset());
      for (const radio of this.section.querySelectorAll("input[type=radio]")) {
        radio.addEventListener("change", () => {
          this.width = radio.value;
          this.zoomed = 0;
          this.place();
          this.draw();
        });
      }
    }

    // first moves to the widest frame that was found.
    first() {
      let widest = -1;
      for (const i of this.drawn.keys()) {
        if (this.marked(i) && (widest < 0 || this.value[i] > this.value[widest])) widest = i;
      }
      if (widest < 0) return;
      this.graph.focus({ preventScroll: true });
      this.move(widest);
    }

    key(e) {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const i = this.drawn.has(this.cursor) ? this.cursor : this.zoomed;
      const { depth } = this.data;
      const row = () => [...this.drawn.keys()].filter((k) => depth[k] === depth[i]);
      const to = (k) => { if (k !== undefined && k >= 0 && this.drawn.has(k)) this.move(k); };
      switch (e.key) {
        case "ArrowUp": to(this.parent[i]); break;
        case "ArrowDown": {
          let widest = -1;
          for (let k = i + 1; k < this.end[i]; k = this.end[k]) {
            if (this.drawn.has(k) && (widest < 0 || this.value[k] > this.value[widest])) widest = k;
          }
          to(widest);
          break;
        }
        case "ArrowLeft": to(row().filter((k) => k < i).pop()); break;
        case "ArrowRight": to(row().find((k) => k > i)); break;
        case "Home": to(row()[0]); break;
        case "End": to(row().pop()); break;
        case "Enter": case " ": this.open(i); break;
        case "Escape": this.reset(); break;
        default: return;
      }
      e.preventDefault();
    }
  }

  globalThis.flames = [...document.querySelectorAll("section.flame")].map((section) => {
    const flame = new Flame(section);
    section.flame = flame;
    flame.start();
    return flame;
  });
})();
