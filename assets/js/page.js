/* page.js: the seam to gradio. Values arrive through `watch`, and go to the view or to the status line.
 *
 * `props.value` of the view is the trace so far; that of the status is a JSON object {state, text, position, total}. */
(function (S) {
  "use strict";
  const { h, replace } = S;
  const NARROW = 760;
  const page = { viewer: null, status_: null, names: [], values: [], ranWith: null };

  page.view = (element, props, watch) => {
    const root = element.querySelector(".sv-view") || element;
    const viewer = S.mount(root);
    page.viewer = viewer;
    viewer.onchange = drawStatus;
    if (props.value) viewer.setTrace(props.value, { origin: "bundled" });
    watch("value", () => {
      if (props.value) viewer.setTrace(props.value, { origin: "run" });
    });
    const looks = new MutationObserver(() => viewer.player.measure());
    looks.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    document.addEventListener("focusin", nameSliders);
    requestAnimationFrame(nameSliders);
    setTimeout(nameSliders, 500);
    nameEmptyPlots();
    openLink();
    window.addEventListener("hashchange", openLink);
    if (window.innerWidth < NARROW) foldSettings(20);
  };

  page.status = (element, props, watch) => {
    const root = element.querySelector(".sv-status") || element;
    page.text = h("p.sv-statustext", { role: "status" });
    page.bar = h("progress", { max: 1, hidden: true, "aria-label": "Loading" });
    replace(root, page.text, page.bar);
    const read = () => {
      const before = page.status_;
      page.status_ = JSON.parse(props.value || "{}");
      if (page.status_.state === "running" && (!before || before.state !== "running")) begun();
      drawStatus();
    };
    watch("value", read);
    read();
  };

  /* The run in the page's own address; without one, or with one that cannot be drawn, what is shown stays. */
  async function openLink() {
    const { viewer } = page;
    const { trace: before, origin } = viewer;
    try {
      const trace = await S.link.traceIn(location.hash);
      if (trace === null) return;
      if (viewer.isLive) viewer.header.say("A run is going on. Press Stop first, then open the link.");
      else {
        viewer.show(trace, { origin: "link" });
        viewer.header.say("");
      }
    } catch (error) {
      if (viewer.origin === "link" && viewer.trace !== before) viewer.show(before, { origin });
      viewer.header.say(error instanceof S.TraceError ? error.message : S.link.DAMAGED);
    }
  }

  function begun() {
    page.ranWith = JSON.stringify(page.values);
    if (window.innerWidth < NARROW) page.viewer.element.scrollIntoView({ block: "start" });
  }

  page.settings = (names, values) => {
    page.names = names;
    page.values = values;
    drawStatus();
  };

  function drawStatus() {
    const { viewer, status_ } = page;
    if (!viewer || !status_ || !page.text || page.isDrawing) return;
    page.isDrawing = true;
    const isRunning = status_.state === "running";
    viewer.setLive(isRunning);
    page.isDrawing = false;
    const text = isRunning ? `${status_.text}…` : [status_.text, resting(viewer)].filter(Boolean).join(" ");
    if (page.text.textContent !== text) page.text.textContent = text;
    page.bar.hidden = !(isRunning && status_.total > 0);
    if (status_.total > 0) page.bar.value = status_.position / status_.total;
    document.body.classList.toggle("sv-running", isRunning);
  }

  function resting(viewer) {
    if (viewer.origin === "bundled") return "A recorded run is shown. Run decodes your prompt on this machine.";
    if (viewer.origin === "file") return "A run from a file is shown. Run decodes your prompt on this machine.";
    if (viewer.origin === "link") {
      const less = viewer.trace.meta.tables === false ? ", without its lists of likely tokens" : "";
      return `A run from a link is shown${less}. Run decodes your prompt on this machine.`;
    }
    if (viewer.origin === "none" || page.ranWith === null) return "";
    return page.ranWith === JSON.stringify(page.values)
      ? "The page shows these settings."
      : "Settings changed: run again to see their effect.";
  }

  /* Gradio calls the two inputs of a slider "range slider for X" and "number input for X": the slider is X. */
  function nameSliders() {
    for (const input of document.querySelectorAll("input[aria-label^='range slider for ']")) {
      input.setAttribute("aria-label", input.getAttribute("aria-label").slice("range slider for ".length));
    }
    for (const input of document.querySelectorAll("input[aria-label^='number input for ']")) {
      input.setAttribute("aria-label", `${input.getAttribute("aria-label").slice("number input for ".length)} as a number`);
    }
  }

  /* Gradio names the place of a plot without data, but gives it no role that may have a name. */
  function nameEmptyPlots() {
    let timer = 0;
    const name = () => {
      timer = 0;
      for (const empty of document.querySelectorAll(".empty[aria-label]:not([role])")) empty.setAttribute("role", "img");
    };
    const soon = () => (timer = timer || setTimeout(name, 100));
    new MutationObserver(soon).observe(document.body, { childList: true, subtree: true });
    soon();
  }

  /* On a phone the run comes before the settings; the accordion may not be there yet. */
  function foldSettings(attempts) {
    const button = document.querySelector("#settings button.label-wrap.open");
    if (button) button.click();
    else if (attempts > 0) setTimeout(() => foldSettings(attempts - 1), 100);
  }

  S.page = page;
})(window.SpecView);
