// The page around the charts: texts, the cluster picker, the table of clients, the theme, and, where
// it is served live, new contents as they come. Texts are always set as text, never as markup.
"use strict";

(() => {
  const $ = (selector) => document.querySelector(selector);
  const root = document.documentElement;
  let contents = JSON.parse($("#contents").textContent);
  let picked = null;
  let chosen = null; // name of the client that is shown on its own
  let order = { key: null, up: true };

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  function dot(colour) {
    const element = make("span", undefined, "dot");
    if (colour) element.style.background = colour;
    return element;
  }

  // --- texts ------------------------------------------------------------------------------------

  const STATUS = { completed: "completed", failed: "failed", stopped: "stopped" };

  function pairs(list, entries) {
    list.replaceChildren(...entries.map(([label, text]) => {
      const pair = make("div");
      pair.append(make("dt", label), make("dd", text));
      return pair;
    }));
  }

  function showTexts() {
    const c = contents;
    $("#name").textContent = c.name;
    $("#status").textContent = STATUS[c.status] || (root.dataset.live === "yes" ? "going on, or killed" : "not ended");
    $("#status").className = "pill " + (STATUS[c.status] ? c.status : "");
    $("#written").textContent = c.written ? "last written " + c.written : "nothing written yet";
    $("#outcome").textContent = c.outcome;
    $("#outcome").hidden = !c.outcome;
    $("#banners").replaceChildren(...c.banners.map(([kind, text]) => {
      const box = make("div", undefined, "banner " + kind);
      const [start, ...rest] = text.split(":");
      box.append(make("b", start + ":"), rest.join(":"));
      box.setAttribute("role", "status");
      return box;
    }));
    showScores();
    $("#reason").textContent = c.reason;
    $("#reason").hidden = !c.reason;
    pairs($("#figures"), c.figures);
    pairs($("#facts"), c.facts);
    $("#settings").hidden = !c.settings.length;
    const keys = c.settings.length === 1 ? "1 key differs" : c.settings.length + " keys differ";
    $("#settings summary").textContent = keys + " from the defaults";
    $("#settings tbody").replaceChildren(...c.settings.map((entry) => {
      const row = make("tr");
      row.append(...entry.map((text) => make("td", text)));
      return row;
    }));
    $("#notes").replaceChildren(...c.notes.map((note) => make("li", note)));
    $("#said").replaceChildren(...c.history.discovery.said.map(([at, text]) => make("li", `round ${at}: ${text}`)));
    const changes = new Map();
    for (const g of c.history.changes) changes.set(g.round, [...(changes.get(g.round) || []), g.text]);
    $("#changes").replaceChildren(...[...changes].map(([at, texts]) => make("li", `round ${at}: ${texts.join(", ")}`)));
  }

  function showScores() {
    const { clusters = {}, local, global } = contents.history.scores;
    const rows = [["training clients", local, null], ["observers", global, null],
      ...Object.entries(clusters).map(([id, found]) => ["cluster " + id, found, Number(id)])].filter((row) => row[1]);
    $("#scores").hidden = !rows.length;
    if (!rows.length) return;
    const pooled = rows.some(([, found]) => found.auc !== null && found.auc !== undefined);
    const names = ["", "accuracy", "balanced accuracy", "macro F1", ...(pooled ? ["AUC"] : []), "test samples"];
    $("#scores thead tr").replaceChildren(...names.map((name, i) => make("th", name, i ? "number" : "")));
    $("#scores tbody").replaceChildren(...rows.map(([name, found, id]) => {
      const row = make("tr");
      const first = make("td", name);
      if (id !== null) {
        first.prepend(dot(clusterColour(id)));
        first.className = "whole";
      }
      row.append(first);
      for (const key of ["accuracy", "balanced_accuracy", "macro_f1"]) {
        const cell = make("td", key === "macro_f1" ? found[key].toFixed(3) : percent(found[key]), "number");
        const beside = found["constant_" + key];
        cell.append(make("span", `(${key === "macro_f1" ? beside.toFixed(3) : percent(beside)})`, "beside"));
        row.append(cell);
      }
      if (pooled) {
        const cell = make("td", found.auc === null ? "" : found.auc.toFixed(3), "number");
        if (found.auc !== null) cell.append(make("span", "(0.500)", "beside"));
        row.append(cell);
      }
      row.append(make("td", String(found.samples), "number"));
      return row;
    }));
  }

  // --- one client -------------------------------------------------------------------------------

  const theChosen = () => contents.population.clients.find((one) => one.name === chosen) || null;

  function choose(name) {
    chosen = name;
    showOne();
    showClients();
  }

  function showOne() {
    const all = contents.population.clients;
    const one = theChosen();
    $("#one").hidden = !all.length;
    $("#choice").replaceChildren(new Option("Choose a client", ""), ...all.map((c) => new Option(c.name, c.name)));
    $("#choice").value = one ? one.name : "";
    $("#about").hidden = !one;
    for (const chart of CHARTS) if (chart[4].length > 3) showChart(chart);
    if (!one) return;
    const s = one.scores;
    const facts = [`${one.name}: ${one.role === "train" ? "training client" : "observer"} with ${one.samples} samples to fit`];
    if (one.cluster >= 0) {
      facts.push(`in cluster ${one.cluster}` + (one.weights ? ` with a weight of ${Math.max(...one.weights).toFixed(3)}` : ""));
    }
    if (one.accuracy !== null) {
      facts.push(`accuracy ${percent(one.accuracy)} on ${s.samples} test samples`
        + (s.constant_accuracy === undefined ? "" : ` (a constant answer: ${percent(s.constant_accuracy)})`));
    }
    if (s.balanced_accuracy !== undefined) facts.push(`balanced accuracy ${percent(s.balanced_accuracy)}, macro F1 ${s.macro_f1.toFixed(3)}`);
    if (s.auc !== undefined) facts.push(`AUC ${s.auc.toFixed(3)}`);
    if (one.concept >= 0) facts.push(`true concept ${one.concept}`);
    if (one.style && one.style !== "none") facts.push(`style ${one.style}`);
    $("#about-text").textContent = facts.join("; ") + ".";
    const told = contents.history.failures;
    $("#about-failures").replaceChildren(...told.points.filter(([, client]) => told.clients[client] === one.name)
      .map(([round, , why]) => make("li", `round ${round}: reply not used: ${told.reasons[why]}`)));
  }

  function showPicker() {
    const clusters = contents.population.clusters;
    if (picked !== null && !clusters.some((k) => k.id === picked)) picked = null;
    $("#picker").hidden = clusters.length < 2;
    const button = (id, text, colour) => {
      const element = make("button");
      element.type = "button";
      element.dataset.cluster = id === null ? "all" : id;
      element.setAttribute("aria-pressed", String(picked === id));
      if (colour) element.append(dot(colour));
      element.append(text);
      element.addEventListener("click", () => { picked = picked === id ? null : id; showPicked(); });
      return element;
    };
    $("#picker").replaceChildren(button(null, "All clusters", null), ...clusters.map((k) =>
      button(k.id, `cluster ${k.id} \u00b7 ${k.clients} client${k.clients === 1 ? "" : "s"}`
        + (k.accuracy === null ? "" : ` \u00b7 ${percent(k.accuracy)}`), clusterColour(k.id))));
  }

  // --- the table of clients ---------------------------------------------------------------------

  const failures = () => {
    const count = new Map();
    const told = contents.history.failures;
    for (const [, client] of told.points) count.set(told.clients[client], (count.get(told.clients[client]) || 0) + 1);
    return count;
  };
  const COLUMNS = [
    ["client", (one) => one.name], ["cluster", (one) => one.cluster],
    ["accuracy", (one) => (one.accuracy === null ? -1 : one.accuracy), (v) => (v < 0 ? "" : percent(v))],
    ["balanced", (one) => one.scores.balanced_accuracy ?? -1, (v) => (v < 0 ? "" : percent(v))],
    ["constant", (one) => one.scores.constant_accuracy ?? -1, (v) => (v < 0 ? "" : percent(v))],
    ["its weight", (one) => (one.weights ? Math.max(...one.weights) : -1), (v) => (v < 0 ? "" : v.toFixed(3))],
    ["samples", (one) => one.samples, String],
    ["tested on", (one) => one.scores.samples ?? 0, (v) => (v ? String(v) : "")],
    ["role", (one) => one.role],
    ["true concept", (one) => one.concept, (v) => (v < 0 ? "" : String(v))],
    ["style", (one) => one.style],
    ["not used", (one, count) => count.get(one.name) || 0, (v) => (v ? String(v) : "")],
  ];

  function showHead() {
    $("#clients thead tr").replaceChildren(...COLUMNS.map(([name, , format]) => {
      const head = make("th", undefined, format ? "number" : "");
      const button = make("button", name);
      button.type = "button";
      if (order.key === name) head.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      button.addEventListener("click", () => {
        order = { key: name, up: order.key === name ? !order.up : true };
        showHead();
        showClients();
      });
      head.append(button);
      return head;
    }));
  }

  function showClients() {
    const all = contents.population.clients;
    const wanted = $("#search").value.toLowerCase();
    const rows = all.filter((one) => (picked === null || one.cluster === picked) && one.name.toLowerCase().includes(wanted));
    const count = failures();
    const column = COLUMNS.find(([name]) => name === order.key);
    if (column) {
      const value = (one) => column[1](one, count);
      const compare = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
      rows.sort((a, b) => (order.up ? 1 : -1) * compare(value(a), value(b)));
    }
    $("#shown").textContent = all.length ? `${rows.length} of ${all.length} clients` : "No client is known yet.";
    $("#clients tbody").replaceChildren(...rows.map((one) => {
      const row = make("tr", undefined, one.name === chosen ? "chosen" : "");
      row.addEventListener("click", () => {
        choose(one.name);
        $("#one").scrollIntoView({ behavior: "smooth", block: "start" });
      });
      for (const [name, value, format] of COLUMNS) {
        const found = value(one, count);
        const cell = make("td", format ? format(found) : String(found), format ? "number" : "");
        if (name === "cluster") {
          cell.textContent = found < 0 ? "" : String(found);
          if (found >= 0) cell.prepend(dot(clusterColour(found)));
        }
        row.append(cell);
      }
      return row;
    }));
  }

  // --- charts -----------------------------------------------------------------------------------

  function look() {
    const style = getComputedStyle(root);
    const names = ["sheet", "ink", "soft", "line", "grid", "accent", "late", "failed", "concept"];
    const found = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    return { ...found, font: getComputedStyle(document.body).fontFamily, narrow: innerWidth < 600 };
  }

  function save(name, title, kind) {
    const chart = echarts.getInstanceByDom($("#" + name + " .chart"));
    let address = "";
    if (kind === "png") {
      address = chart.getDataURL({ type: "png", pixelRatio: 3, backgroundColor: look().sheet });
    } else {
      const size = { renderer: "svg", ssr: true, width: chart.getWidth(), height: chart.getHeight() };
      const copy = echarts.init(null, null, size);
      copy.setOption(chart.getOption());
      const text = copy.renderToSVGString();
      copy.dispose();
      address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    }
    const link = make("a");
    link.href = address;
    link.download = `${contents.name}-${name}.${kind}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  function frame([name, title, about, nothing]) {
    const figure = $("#" + name);
    const caption = make("figcaption");
    caption.append(make("b", title));
    const buttons = make("span", undefined, "save");
    for (const kind of ["png", "svg"]) {
      const button = make("button", kind.toUpperCase());
      button.type = "button";
      button.title = `Save "${title}" as ${kind.toUpperCase()}`;
      button.addEventListener("click", () => save(name, title, kind));
      buttons.append(button);
    }
    caption.append(buttons);
    if (about) caption.append(make("span", about, "about"));
    figure.append(caption, make("div", undefined, "chart"), make("p", nothing, "empty"));
  }

  function showChart([name, , , , build]) {
    const box = $("#" + name + " .chart");
    const option = build(look(), contents, picked, theChosen());
    box.hidden = !option;
    $("#" + name + " .empty").hidden = Boolean(option);
    $("#" + name + " .save").hidden = !option;
    let chart = echarts.getInstanceByDom(box);
    if (!option) { if (chart) chart.dispose(); return; }
    box.style.height = (option.height || 260) + "px";
    delete option.height;
    chart = chart || echarts.init(box, null, { renderer: "canvas" });
    if (chart.getWidth() !== box.clientWidth || chart.getHeight() !== box.clientHeight) chart.resize();
    chart.setOption(option, { notMerge: true });
  }

  function showPicked() {
    showPicker();
    showClients();
    for (const chart of CHARTS) if (chart[4].length === 3) showChart(chart); // those that take the pick
  }

  function showAll() {
    showTexts();
    showPicker();
    showClients();
    $("#confusion").className = contents.population.labels.length > 12 ? "wide" : "";
    showOne();
    for (const chart of CHARTS) if (chart[4].length < 4) showChart(chart);
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }

  // --- theme, size ------------------------------------------------------------------------------

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const nameTheme = () => { $("#theme").textContent = isDark() ? "Light" : "Dark"; };
  $("#theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
    showAll();
  });
  dark.addEventListener("change", () => { nameTheme(); showAll(); });
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(showAll, 150);
  });
  $("#search").addEventListener("input", showClients);
  $("#choice").addEventListener("change", (event) => choose(event.target.value || null));

  // --- live -------------------------------------------------------------------------------------

  let last = "";

  async function follow() {
    let wait = 2000;
    try {
      const reply = await fetch("contents.json", { cache: "no-cache", credentials: "same-origin" });
      if (!reply.ok) throw new Error(String(reply.status));
      const text = await reply.text();
      if (text !== last || root.dataset.link === "down") {
        last = text;
        contents = JSON.parse(text);
        root.dataset.link = "up";
        showAll();
      }
    } catch {
      root.dataset.link = "down";
      $("#written").textContent = "the viewer does not answer: what you see is no longer new";
      wait = 5000;
    }
    setTimeout(follow, wait);
  }

  CHARTS.forEach(frame);
  nameTheme();
  showHead();
  showAll();
  if (root.dataset.live === "yes") follow();
})();
