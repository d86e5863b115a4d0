(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = (id) => document.getElementById(id);
  const dataOf = (id) => JSON.parse(byId(id)?.textContent ?? "null");

  function groupBy(items, keyOf) {
    const groups = new Map();
    items.forEach((item) => groups.set(keyOf(item), [...(groups.get(keyOf(item)) ?? []), item]));
    return groups;
  }

  // --- leaderboard: sort within each dataset; the seeds of a line stay below it ---
  function compare(column, numeric, sign) {
    const key = (row) => row.cells[column].dataset.value;
    return (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // unknown comes last both ways
      return sign * (numeric ? x - y : x.localeCompare(y, "en", { numeric: true }));
    };
  }

  const seedsOf = (row) => all(`tr.seed[data-of="${row.id}"]`, row.parentElement);

  function sortBy(header) {
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    all("thead th").forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const order = compare(header.cellIndex, header.dataset.kind === "number", ascending ? 1 : -1);
    all("#leaderboard tbody").forEach((body) => {
      const members = groupBy(all("tr.seed", body), (row) => row.dataset.of);
      body.append(...all("tr.run", body).sort(order)
        .flatMap((row) => [row, ...(members.get(row.id) ?? [])]));
    });
  }

  function showSeeds(row) {
    const expanded = row.querySelector("button.seeds").getAttribute("aria-expanded") === "true";
    seedsOf(row).forEach((seed) => { seed.hidden = row.hidden || !expanded; });
  }

  function toggleSeeds(button) {
    button.setAttribute("aria-expanded", button.getAttribute("aria-expanded") !== "true");
    showSeeds(button.closest("tr"));
  }

  // Readers can hide every column but place and name. If the table is wider than the window and the reader has
  // not chosen yet, these columns are hidden first. `Columns` counts the hidden columns.
  const LEAST_IMPORTANT = ["Ranks", "Samples/s", "Steps", "Loss", "Time", "Model", "Validation", "Other settings"];

  function startColumns() {
    const heads = all("#leaderboard thead th"), titles = heads.map((head) => head.textContent.trim());
    const boxes = new Map();
    const show = (index, shown) => {
      boxes.get(index).checked = shown;
      heads[index].hidden = !shown;
      all("#leaderboard tbody tr:not(.group)").forEach((row) => { row.cells[index].hidden = !shown; });
    };
    let hasChosen = false;
    const count = () => {
      const left = [...boxes.values()].filter((box) => !box.checked).length;
      byId("columns").firstElementChild.textContent = left ? `Columns (${left} more)` : "Columns";
    };
    heads.forEach((head, index) => {
      if (index < 2) return;
      const box = element("input", [], { type: "checkbox" });
      box.checked = !head.hidden;
      boxes.set(index, box);
      box.addEventListener("change", () => { hasChosen = true; show(index, box.checked); count(); });
      byId("columns").lastElementChild.append(element("label", [box, titles[index]]));
    });
    const settings = titles.slice(3, titles.indexOf("Held-out score")).reverse();
    const order = [...LEAST_IMPORTANT, ...settings.slice(0, -1)].map((title) => titles.indexOf(title));
    const first = [...boxes].filter(([, box]) => box.checked).map(([index]) => index);
    const frame = byId("leaderboard")?.parentElement; // a report without results has no leaderboard
    const fitColumns = () => {
      if (hasChosen || !frame) return;
      first.forEach((index) => show(index, true));
      order.filter((index) => first.includes(index)).forEach((index) => {
        if (frame.scrollWidth > frame.clientWidth) show(index, false);
      });
      count();
    };
    fitColumns();
    addEventListener("resize", fitColumns);
  }

  // --- filter: leaderboard and run details ---
  function applyFilter() {
    const words = byId("filter-text").value.toLowerCase().split(/\s+/);
    const group = byId("filter-group")?.value ?? "";
    let shown = 0, total = 0;
    all("#leaderboard tr.run").forEach((row) => {
      const text = row.dataset.text.toLowerCase();
      const fits = words.every((word) => text.includes(word));
      const anchors = row.dataset.details.split(" ");
      row.hidden = !(fits && (group === "" || row.parentElement.dataset.group === group));
      anchors.forEach((anchor) => { byId(anchor).hidden = row.hidden; });
      if (anchors.length > 1) showSeeds(row);
      total += anchors.length;
      shown += row.hidden ? 0 : anchors.length;
    });
    all("#leaderboard tbody").forEach((body) => {
      body.hidden = all("tr.run", body).every((row) => row.hidden);
    });
    byId("filter-count").textContent = `${shown} of ${total} runs shown`;
  }

  // --- details of runs: parsed when a reader opens them ---
  let images;
  function fill(details) {
    const source = details.querySelector(":scope > noscript");
    if (!source) return;
    const made = document.createElement("template");
    made.innerHTML = source.textContent;
    images ??= dataOf("images");
    all('img[src^="#image-"]', made.content).forEach((image) => {
      image.src = images[image.getAttribute("src")];
    });
    all("figure[data-from]", made.content).forEach(takeCurves);
    all("figure[data-spec]", made.content).forEach(takeSpec);
    source.replaceWith(made.content);
    window.shardlineCharts?.draw(details);
  }

  // The curves of a run come from the figure of its dataset, without the other runs.
  function takeCurves(figure) {
    const spec = JSON.parse(byId(figure.dataset.from).querySelector("script").textContent);
    Object.entries(spec.datasets).forEach(([name, rows]) => {
      spec.datasets[name] = rows.filter((row) => row.run === figure.dataset.run);
    });
    figure.append(element("script", JSON.stringify(spec), { type: "application/json" }));
  }

  // Runs share one specification of the machine curves; each run has its own rows.
  function takeSpec(figure) {
    const rows = figure.querySelector("script");
    const spec = JSON.parse(byId(figure.dataset.spec).textContent);
    rows.textContent = JSON.stringify({ ...spec, datasets: { points: JSON.parse(rows.textContent) } });
  }

  function openTarget() {
    const name = location.hash.slice(1);  // only letters, digits and dashes
    if (name.startsWith("compare=")) return openComparison(name.slice(8).split(","));
    const target = byId(name);
    if (!target?.matches("details")) return;
    target.hidden = false;
    target.open = true;
    fill(target);  // now, not after the event: scrolling needs its height
    target.scrollIntoView();
  }

  function printAlone(details) {
    document.body.classList.add("one-run");
    details.classList.add("printed");
    print();
    document.body.classList.remove("one-run");
    details.classList.remove("printed");
  }

  // --- comparison of two runs ---
  const compared = dataOf("compare-data");

  function element(name, content = [], attributes = {}) {
    const made = document.createElement(name);
    made.append(...[content].flat());
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    return made;
  }

  function show(value) {
    if (value === null || value === undefined) return "–";
    if (typeof value === "string") return value;
    if (typeof value !== "number") return JSON.stringify(value);
    return Number.isInteger(value) ? value.toLocaleString("en")
      : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  }

  // Keys that differ, with the value of each run; undefined if a run has no such key.
  function differences(kind, a, b) {
    const { keys, values, rows } = compared.parts[kind];
    const index = Object.keys(compared.parts).indexOf(kind);
    const [mine, other] = [a, b].map((run) => rows[run.parts[index]]);
    return keys.map((key, i) => [key, values[i][mine[i]], values[i][other[i]]])
      .filter(([, x, y], i) => mine[i] !== other[i] && JSON.stringify(x) !== JSON.stringify(y));
  }

  const unset = (value) => value === undefined ? "unset" : show(value);

  // A key that only one run has belongs to another model, which the settings show.
  function codeDifferences(a, b) {
    return differences("code", a, b)
      .filter(([key, x, y]) => key.length === 1 || (x !== undefined && y !== undefined))
      .map(([key, x, y]) => key[0] === "code"
        ? `code of the ${key[1]} differs` : `${key.join(" ")} ${unset(x)} → ${unset(y)}`);
  }

  // --- noise of a difference, as in shardline.report.significance ---
  function quantile(degrees) {  // between whole degrees of freedom: linear in their inverse
    const table = compared.t, low = Math.min(Math.floor(degrees), table.length);
    if (low >= table.length) return table[table.length - 1];
    const share = (1 / low - 1 / degrees) / (1 / low - 1 / (low + 1));
    return table[low - 1] + share * (table[low] - table[low - 1]);
  }

  function welch([meanA, sdA, nA], [meanB, sdB, nB]) {
    const [a, b] = [sdA ** 2 / nA, sdB ** 2 / nB];
    if (nA < 2 || nB < 2 || a + b === 0) return null;
    const half = quantile((a + b) ** 2 / (a ** 2 / (nA - 1) + b ** 2 / (nB - 1))) * Math.sqrt(a + b);
    return [meanA - meanB - half, meanA - meanB + half];
  }

  // Nadeau and Bengio's paired interval, as in shardline.core.intervals.fold_interval
  function paired(a, b) {
    const shared = Object.keys(a[3]).filter((fold) => fold in b[3]);
    const found = shared.map((fold) => a[3][fold] - b[3][fold]), n = found.length;
    if (n < 2) return null;
    const mean = found.reduce((x, y) => x + y) / n;
    const spread = found.reduce((sum, x) => sum + (x - mean) ** 2, 0) / (n - 1);
    if (spread === 0) return null;
    const half = quantile(n - 1) * Math.sqrt((1 / n + 1 / (a[4] - 1)) * spread);
    return [mean - half, mean + half, mean];
  }

  function judge(a, b) {
    if (a.dataset !== b.dataset || a.headline.join() !== b.headline.join())
      return "These runs were evaluated on other data or by another metric, so their scores cannot be compared.";
    if (a.row === null || b.row === null) return "Runs of a scaling study are not in the leaderboard, so their scores are not compared.";
    if (a.row === b.row) return compared.rows[a.row][3]
      ? "These runs differ in nothing but the fold or the seed, so the difference between their scores is noise."
      : "These runs differ in nothing but the seed, so the difference between their scores is seed noise.";
    const [mine, other] = [compared.rows[a.row], compared.rows[b.row]];
    if (mine[3] && other[3]) {
      const interval = paired(mine, other);
      if (!interval) return "These runs share too few folds, so no difference is claimed. Run both on all folds.";
      const found = `Over the folds that both share, the mean ${a.headline[0]} differs by ${score(interval[2], a.headline[0])} `
        + `(95 % interval ${interval.slice(0, 2).map((end) => score(end, a.headline[0])).join(" to ")})`;
      return interval[0] <= 0 && interval[1] >= 0
        ? `${found}: the difference is within the spread between folds.` : `${found}: the difference is larger than the spread between folds.`;
    }
    const interval = welch(mine, other);
    if (interval) {
      const found = `The mean ${a.headline[0]} over ${mine[2]} and ${other[2]} seeds differs by `
        + `${score(mine[0] - other[0], a.headline[0])} (Welch's 95 % interval `
        + `${interval.map((end) => score(end, a.headline[0])).join(" to ")})`;
      return interval[0] <= 0 && interval[1] >= 0
        ? `${found}: the difference is within the spread between seeds.` : `${found}: the difference is larger than the spread between seeds.`;
    }
    if (!a.interval || !b.interval)
      return "The noise is unknown, so no difference is claimed. Repeat both runs with other seeds to measure it.";
    return a.interval[1] >= b.interval[0] && b.interval[1] >= a.interval[0]
      ? "Their 95 % intervals over the held-out samples overlap, so the difference is within noise. Seed noise comes on top."
      : "Their 95 % intervals over the held-out samples do not overlap. Seed noise is unknown: repeat both runs with other seeds before you rely on the difference.";
  }

  // Differences of shares in percentage points, as in the tables above.
  const score = (value, metric) => /^((test|val)[\W_]+)?acc(uracy)?([\W_]+(test|val)\W*)?$/i.test(metric) ? `${(100 * value).toFixed(1)} points` : show(value);

  function resultTable(a, b) {
    const names = [...new Set([...Object.keys(a.results), ...Object.keys(b.results)])];
    const rows = names.map((name) => {
      const [x, y] = [a, b].map((run) => run.results[name]);
      const numbers = [x, y].map((pair) => pair?.[0]);
      const differ = numbers.every((value) => typeof value === "number")
        ? show(numbers[1] - numbers[0]) : "–";
      const cells = [[x, a], [y, b]].map(([pair, run]) => element("td", pair ? [
        show(pair[0]), element("code", run.actions[pair[1]], { class: "action" }),
      ] : "–"));
      return element("tr", [element("th", name, { scope: "row" }), ...cells, element("td", differ)]);
    });
    const heads = ["number", a.title, b.title, "second minus first"];
    const head = element("tr", heads.map((text) => element("th", text, { scope: "col" })));
    return element("div", element("table", [element("thead", head), element("tbody", rows)],
      { class: "pairs compared" }), { class: "scroll" });
  }

  function differenceList(kind, a, b) {
    const texts = kind === "code" ? codeDifferences(a, b)
      : differences(kind, a, b).map(([key, x, y]) => `${key.join(" ")} ${unset(x)} → ${unset(y)}`);
    const list = texts.length ? element("ul", texts.map((text) => element("li", text)))
      : element("p", "No difference.", { class: "muted" });
    return element("section", [element("h3", `${kind[0].toUpperCase()}${kind.slice(1)}`), list]);
  }

  function showComparison() {
    const names = ["compare-a", "compare-b"].map((id) => byId(id).value);
    const [a, b] = names.map((name) => compared.runs[name]);
    const shown = names[0] === names[1] ? ["Choose two different runs."] : [
      element("p", judge(a, b), { class: "judged" }),
      element("div", Object.keys(compared.parts).map((kind) => differenceList(kind, a, b)),
        { class: "parts" }),
      resultTable(a, b),
    ];
    byId("compare-result").replaceChildren(...shown);
  }

  function openComparison(names) {
    if (!names.every((name) => compared?.runs[name])) return;
    byId("compare-a").value = names[0];
    byId("compare-b").value = names[1];
    showComparison();
    byId("compare-title").scrollIntoView();
    byId("compare-title").focus({ preventScroll: true });
  }

  function chosen() {
    showComparison();
    const names = ["compare-a", "compare-b"].map((id) => byId(id).value);
    history.replaceState(null, "", `#compare=${names.join(",")}`);
  }

  function startComparison() {
    const [first, second] = [byId("compare-a"), byId("compare-b")];
    second.append(...[...first.children].map((child) => child.cloneNode(true)));
    second.selectedIndex = 1;
    [first, second].forEach((field) => field.addEventListener("change", chosen));
    byId("compare-swap").addEventListener("click", () => {
      [first.value, second.value] = [second.value, first.value];
      chosen();
    });
    showComparison();
  }

  // --- start ---
  all("#leaderboard th[scope=col] button").forEach((button) =>
    button.addEventListener("click", () => sortBy(button.closest("th"))));
  all("tr.seed").forEach((row) => { row.hidden = true; });
  all("button.seeds").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => toggleSeeds(button));
  });
  all("[role=search] input, [role=search] select").forEach((field) =>
    field.addEventListener("input", applyFilter));
  document.addEventListener("toggle", (event) => {
    if (event.target.open) fill(event.target);
  }, true);
  document.addEventListener("click", (event) => {
    if (event.target.matches(".print-run")) printAlone(event.target.closest("details"));
  });
  all(".filters, .scripted").forEach((part) => { part.hidden = false; });
  startColumns();
  if (compared) startComparison();
  addEventListener("hashchange", openTarget);
  // Charts are drawn last, so that the table and a link's target show first.
  openTarget();
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
    window.shardlineCharts?.startCharts();
    all("details[open]").forEach((details) => window.shardlineCharts?.draw(details));
  })));
})();
