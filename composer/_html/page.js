"use strict";
// Draws each <figure class="plot"> with plotly.js, which the page carries compressed, in the colors of its style sheet.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 720px)");
  const touch = matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll("figure.plot")].map((figure) => ({
    canvas: figure.querySelector(".canvas"),
    height: Number.parseFloat(figure.querySelector(".canvas").style.height),
    followed: new Set(), // changes that come from linked plots
    ...JSON.parse(figure.querySelector("script").textContent),
  }));

  function unpacked(element) {
    const bytes = Uint8Array.from(atob(element.textContent), (character) => character.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  async function loadLibrary() {
    const script = document.createElement("script");
    script.textContent = await unpacked(document.getElementById("plotly"));
    document.head.append(script);
  }

  function template() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(`--${name}`).trim();
    const axis = { gridcolor: color("grid"), linecolor: color("line"), zerolinecolor: color("line"), tickcolor: color("line") };
    const box = { bgcolor: color("raised"), bordercolor: color("line"), font: { color: color("text") } };
    return {
      layout: {
        font: { family: "system-ui, sans-serif", size: 13, color: color("text") },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        xaxis: axis,
        yaxis: axis,
        hoverlabel: { ...box, namelength: -1, align: "left" },
        updatemenudefaults: { bgcolor: color("raised"), bordercolor: color("line"), font: { color: color("text") } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: color("muted"), activecolor: color("text") },
      },
    };
  }

  // The legend is beside the plot, or below it on a phone, where the figure is higher by its lines.
  function placed(plot) {
    const { legend, margin, showlegend } = plot.layout;
    const named = plot.data.filter((trace) => trace.showlegend !== false).length;
    const lines = narrow.matches && (showlegend ?? plot.data.length > 1) ? named : 0;
    const room = lines && 20 * Math.min(lines, 12) + 16; // a longer legend scrolls
    plot.canvas.style.height = `${plot.height + room}px`;
    const place = narrow.matches
      ? { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", maxheight: room || 1, entrywidth: 1, entrywidthmode: "fraction", font: { size: 12 } }
      : { orientation: "v", x: 1.02, xanchor: "left", yref: "paper", y: 1, yanchor: "top", maxheight: 1, entrywidth: 0, entrywidthmode: "pixels", font: { size: 13 } };
    return {
      template: template(),
      legend: { ...legend, ...place },
      margin: { ...margin, b: (margin?.b ?? 50) + room },
    };
  }

  function draw(plot) {
    const layout = { autosize: true, ...plot.layout, ...placed(plot) };
    if (touch.matches) layout.dragmode = false; // a finger scrolls the page; the buttons zoom
    return Plotly.newPlot(plot.canvas, plot.data, layout, {
      responsive: true,
      displaylogo: false,
      showSendToCloud: false, // "Share chart" would upload the data
      plotlyServerURL: "",
      displayModeBar: true,
      modeBarButtonsToRemove: ["select2d", "lasso2d"],
      doubleClickDelay: 500,
    });
  }

  const drawn = () => plots.filter((plot) => plot.canvas.classList.contains("js-plotly-plot"));

  function follow() {
    for (const plot of drawn()) Plotly.relayout(plot.canvas, placed(plot));
  }

  // A zoom of one of the linked plots is that of all: their x axes are the same.
  function link(changed, change) {
    const keys = Object.keys(change).filter((key) => key.startsWith("xaxis."));
    const same = Object.fromEntries(keys.map((key) => [key, change[key]]));
    const text = JSON.stringify(same);
    if (!keys.length || changed.followed.delete(text)) return;
    for (const plot of drawn()) {
      if (plot === changed || plot.layout.meta !== "linked") continue;
      plot.followed.add(text);
      Plotly.relayout(plot.canvas, same);
    }
  }

  // Changes the x axis of a plot; its traces stay hidden, pale or visible as they are.
  function onAxis(plot, name) {
    if (!plot.axes) return;
    plot.first ??= { x: plot.data.map((trace) => trace.x), y: plot.data.map((trace) => trace.y), xaxis: plot.layout.xaxis, shapes: plot.layout.shapes };
    const axis = { ...plot.first, ...plot.axes[name] };
    plot.data.forEach((trace, index) => {
      for (const key of ["x", "y"]) {
        const values = axis[key][index];
        trace[key] = Number.isInteger(values) ? axis[key][values] : values;
      }
    });
    const change = () => ({ xaxis: { ...structuredClone(axis.xaxis), autorange: true }, shapes: axis.shapes });
    plot.layout = { ...plot.layout, ...change() };
    if (drawn().includes(plot)) return Plotly.react(plot.canvas, plot.data, { ...plot.canvas.layout, ...change() });
  }

  for (const button of document.querySelectorAll(".axes button")) {
    button.addEventListener("click", async () => {
      for (const other of document.querySelectorAll(".axes button")) {
        other.setAttribute("aria-pressed", String(other.dataset.axis === button.dataset.axis));
      }
      for (const plot of plots) await onAxis(plot, button.dataset.axis);
    });
  }

  // plotly.js reads tags, entities and TeX in names.
  const plain = (name) => name.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("$", "&#36;");

  // Draws the first curves whose names have all words of a search.
  function searchIn(box) {
    const [input, status, names, packed] = ["input", "[role=status]", ".names", ".packed"].map((one) => box.querySelector(one));
    const plot = plots.find((one) => box.contains(one.canvas));
    let curves;

    function named(name) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => {
        input.value = name;
        find();
      });
      return button;
    }

    async function find() {
      curves ??= JSON.parse(await unpacked(packed)).map((one) => ({ ...one, key: one.name.toLowerCase() }));
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const exact = curves.filter((one) => one.name === input.value);
      const found = exact.length ? exact : curves.filter((one) => words.every((word) => one.key.includes(word)));
      const shown = found.slice(0, 10);
      const more = found.length > shown.length ? `, the first ${shown.length} of them below` : "";
      status.textContent = `${found.length.toLocaleString("en")} found${more}`;
      names.replaceChildren(...found.slice(0, 30).map((one) => named(one.name)));
      plot.data = shown.map(({ name, x, y }) => ({
        type: "scatter",
        mode: x.length > 60 ? "lines" : "lines+markers",
        name: plain(name.length > 40 ? `…${name.slice(-39)}` : name),
        meta: plain(name),
        x,
        y,
        hovertemplate: "%{meta}<br>%{xaxis.title.text} %{x}: %{y:.5~g}<extra><\/extra>",
      }));
      if (!drawn().includes(plot)) return; // folded away
      const { xaxis, yaxis } = plot.canvas.layout;
      const whole = { xaxis: { ...xaxis, autorange: true }, yaxis: { ...yaxis, autorange: true } };
      await Plotly.react(plot.canvas, plot.data, { ...plot.canvas.layout, ...placed(plot), ...whole });
    }

    input.addEventListener("input", find);
    return find();
  }

  // What is folded away has no width to be drawn in.
  async function show(some) {
    for (const plot of some) {
      await draw(plot);
      if (plot.layout.meta === "linked") plot.canvas.on("plotly_relayout", (change) => link(plot, change));
    }
  }

  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => {
      const isReady = document.documentElement.dataset.plots === "drawn";
      if (isReady) show(plots.filter((plot) => details.contains(plot.canvas) && !drawn().includes(plot)));
    });
  }

  loadLibrary()
    .then(() => Promise.all([...document.querySelectorAll(".search")].map(searchIn)))
    .then(() => show(plots.filter((plot) => !plot.canvas.closest("details:not([open])"))))
    .then(() => {
      dark.addEventListener("change", follow);
      narrow.addEventListener("change", follow);
      document.documentElement.dataset.plots = "drawn";
    })
    .catch((error) => {
      document.documentElement.dataset.plots = "failed";
      for (const plot of plots) {
        plot.canvas.style.height = "auto";
        plot.canvas.textContent = "The plot could not be drawn; the tables have the same numbers. It needs a browser of 2023 or newer.";
      }
      console.error(error);
    });
})();
