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

  // --- leaderboard: sort within each dataset; the runs of several seeds stay below their line ---
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

  // All columns but place and name can be left out. Where the table is wider than the window, the least telling
  // ones are, until a reader has chosen; `Columns` counts them.
  const LEAST_TELLING = ["Ranks", "Samples/s", "Steps", "Loss", "Time", "Model", "Validation", "Other settings"];

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
    const order = [...LEAST_TELLING, ...settings.slice(0, -1)].map((title) => titles.indexOf(title));
    const first = [...boxes].filter(([, box]) => box.checked).map(([index]) => index);
    const frame = byId("leaderboard")?.parentElement; // a report of failed runs alone has no leaderboard
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

  // --- details of runs: text until they are opened ---
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

  // A run's curves are those of the dataset's figure, without the other runs.
  function takeCurves(figure) {
    const spec = JSON.parse(byId(figure.dataset.from).querySelector("script").textContent);
    Object.entries(spec.datasets).forEach(([name, rows]) => {
      spec.datasets[name] = rows.filter((row) => row.run === figure.dataset.run);
    });
    figure.append(element("script", JSON.stringify(spec), { type: "application/json" }));
  }

  // Of the machine curves a run has its rows alone; one specification stands for many runs.
  function takeSpec(figure) {
    const rows = figure.querySelector("script");
    const spec = JSON.parse(byId(figure.dataset.spec).textContent);
    rows.textContent = JSON.stringify({ ...spec, datasets: { points: JSON.parse(rows.textContent) } });
  }

  function openTarget() {
    const name = location.hash.slice(1);  // letters, digits and dashes alone
    if (name.startsWith("compare=")) return openComparison(name.slice(8).split(","));
    const target = byId(name);
    if (!target?.matches("details")) return;
    target.hidden = false;
    target.open = true;
    fill(target);  // now, not after the event: its height decides where to scroll
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

  // Keys, and what either run has there; undefined where it has no such key.
  function differences(kind, a, b) {
    const { keys, values, rows } = compared.parts[kind];
    const index = Object.keys(compared.parts).indexOf(kind);
    const [mine, other] = [a, b].map((run) => rows[run.parts[index]]);
    return keys.map((key, i) => [key, values[i][mine[i]], values[i][other[i]]])
      .filter(([, x, y], i) => mine[i] !== other[i] && JSON.stringify(x) !== JSON.stringify(y));
  }

  const unset = (value) => value === undefined ? "unset" : show(value);

  // What only one of them has is another model's, which the settings tell.
  function codeDifferences(a, b) {
    return differences("code", a, b)
      .filter(([key, x, y]) => key.length === 1 || (x !== undefined && y !== undefined))
      .map(([key, x, y]) => key[0] === "code"
        ? `code of the ${key[1]} differs` : `${key.join(" ")} ${unset(x)} → ${unset(y)}`);
  }

  // --- what noise leaves of a difference, as shardline.report.significance has it ---
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

  function judge(a, b) {
    if (a.dataset !== b.dataset || a.headline.join() !== b.headline.join())
      return "They were judged on other data or by another metric: their scores cannot be held against each other.";
    if (a.row === null || b.row === null) return "A run of a scaling study has no place in the leaderboard: its score is not judged.";
    if (a.row === b.row) return "They differ in nothing but the seed: what their scores differ by is seed noise itself.";
    const [mine, other] = [compared.rows[a.row], compared.rows[b.row]];
    const interval = welch(mine, other);
    if (interval) {
      const told = `Over ${mine[2]} and ${other[2]} seeds the mean ${a.headline[0]} differs by `
        + `${score(mine[0] - other[0], a.headline[0])} (Welch's 95 % interval `
        + `${interval.map((end) => score(end, a.headline[0])).join(" to ")})`;
      return interval[0] <= 0 && interval[1] >= 0
        ? `${told}: too small to matter against seed noise.` : `${told}: clear against seed noise.`;
    }
    if (!a.interval || !b.interval)
      return "Nothing tells how large the noise is, so no difference is claimed: repeat both with other seeds.";
    return a.interval[1] >= b.interval[0] && b.interval[1] >= a.interval[0]
      ? "Their 95 % intervals by the choice of held-out samples overlap: not clearly different, and seed noise comes on top."
      : "Their 95 % intervals by the choice of held-out samples do not overlap. Seed noise is not known: repeat both with other seeds before relying on it.";
  }

  // Shares in per cent and their differences in points, as in the tables above.
  const score = (value, metric) => /^(test_|val_)?acc(uracy)?$/.test(metric) ? `${(100 * value).toFixed(1)} points` : show(value);

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
    const heads = ["figure", a.title, b.title, "second less first"];
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
    const told = names[0] === names[1] ? ["Choose two different runs."] : [
      element("p", judge(a, b), { class: "judged" }),
      element("div", Object.keys(compared.parts).map((kind) => differenceList(kind, a, b)),
        { class: "parts" }),
      resultTable(a, b),
    ];
    byId("compare-result").replaceChildren(...told);
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
  // The table is there before the charts are drawn, and a link's target before both.
  openTarget();
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
    window.shardlineCharts?.startCharts();
    all("details[open]").forEach((details) => window.shardlineCharts?.draw(details));
  })));
})();
