"use strict";
// Draws each <figure class="plot"> with plotly.js, which the page carries compressed, in the colors of its style sheet.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 720px)");
  const touch = matchMedia("(pointer: coarse)");
  const plots = [...document.querySelectorAll("figure.plot")].map((figure) => ({
    canvas: figure.querySelector(".canvas"),
    ...JSON.parse(figure.querySelector("script").textContent),
  }));

  async function loadLibrary() {
    const text = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
    const code = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(code).text();
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
        modebar: { bgcolor: "rgba(0,0,0,0)", color: color("muted"), activecolor: color("text") },
      },
    };
  }

  // Beside the plot, or below it on a phone.
  function legend() {
    return narrow.matches
      ? { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", font: { size: 12 } }
      : { orientation: "v", x: 1.02, xanchor: "left", yref: "paper", y: 1, yanchor: "top", font: { size: 13 } };
  }

  function draw(plot) {
    const layout = { autosize: true, ...plot.layout, template: template(), legend: { ...plot.layout.legend, ...legend() } };
    if (touch.matches) layout.dragmode = false; // a finger scrolls the page; the buttons zoom
    return Plotly.newPlot(plot.canvas, plot.data, layout, {
      responsive: true,
      displaylogo: false,
      displayModeBar: true,
      modeBarButtonsToRemove: ["select2d", "lasso2d"],
      doubleClickDelay: 500,
    });
  }

  function follow() {
    for (const plot of plots) {
      const placed = Object.entries(legend()).map(([name, value]) => [`legend.${name}`, value]);
      Plotly.relayout(plot.canvas, { template: template(), ...Object.fromEntries(placed) });
    }
  }

  loadLibrary()
    .then(() => Promise.all(plots.map(draw)))
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
