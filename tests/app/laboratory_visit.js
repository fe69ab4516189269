/* Operates the laboratory like a visitor, in this window and in a narrow frame. */
const wait = () => new Promise(done => setTimeout(done, 60)); // longer than a frame

/** Number of different colours on a canvas, at every 97th pixel. */
function colours(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), seen = new Set();
  for (let i = 0; i < data.length; i += 4 * 97) seen.add(data.slice(i, i + 4).join());
  return seen.size;
}

async function visit(page) {
  const $ = id => page.document.getElementById(id), { laboratory, problems } = page, views = [];
  for (const tab of Object.keys(laboratory.families)) {
    $(`tab-${tab}`).click();
    await wait();
    for (const view of Object.keys(laboratory.families[tab].views)) {
      $(`view-${view}`).click();
      await wait();
      const root = page.document.documentElement, scene = laboratory.current();
      views.push({
        tab, view, fragment: laboratory.fragment(), overflow: root.scrollWidth - root.clientWidth,
        colours: ["surface", "map", "first", "second"].map(name => colours($(name))),
        time: laboratory.state.time, gap: scene.trace.at(-1) - scene.floor, formula: $("formula").querySelectorAll("math").length,
        unlabelled: [...page.document.querySelectorAll("input, select")].filter(input => !input.labels.length).length,
        rows: $("table").rows.length, story: $("story").textContent.length,
      });
    }
  }
  return { views, problems };
}

async function operate(page) {
  const $ = id => page.document.getElementById(id), { laboratory } = page, seen = {};
  $("tab-linear").click();
  await wait();
  const set = async (id, value) => {
    $(id).value = value;
    $(id).dispatchEvent(new page.Event("input"));
    await wait();
  };
  const facts = () => Object.fromEntries([...$("numbers").querySelectorAll("dt")].map(name => [name.textContent, name.nextSibling.textContent]));
  $("view-angle").click();
  await wait();
  seen.before = facts();
  await set("control-lambda", 0.3);
  await set("control-delta", 0);
  seen.uniform = { facts: facts(), valley: !$("valley-key").hidden, address: page.location.hash };
  await set("control-rule", "augmented");
  seen.augmented = { end: laboratory.current().path.at(-1), disabled: $("control-lambda").disabled };
  await set("time", 0);
  seen.first = { step: $("step").textContent, point: laboratory.current().current };
  const { turn } = laboratory.state;
  $("surface").dispatchEvent(new page.KeyboardEvent("keydown", { key: "ArrowRight" }));
  $("map").dispatchEvent(new page.KeyboardEvent("keydown", { key: "ArrowUp" }));
  await wait();
  seen.turned = laboratory.state.turn - turn;
  seen.start = laboratory.current().start;
  page.location.hash = "#dropout&dropout=0.5&view=products&rate=7&junk=1&target=abc";
  await wait();
  seen.read = { tab: laboratory.state.tab, ...laboratory.state.families.dropout, address: laboratory.fragment() };
  return seen;
}

(async () => {
  await wait();
  const motion = { calm: matchMedia("(prefers-reduced-motion: reduce)").matches, time: laboratory.state.time };
  const operated = await operate(window), wide = await visit(window), frame = document.createElement("iframe");
  frame.style.cssText = "position:fixed;inset:0;width:390px;height:800px;border:0";
  frame.srcdoc = PAGE;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; });
  await wait();
  const narrow = await visit(frame.contentWindow);
  frame.remove();
  probe.write({ values: probe.evaluate(CALLS), motion, operated, wide, narrow });
})().catch(error => probe.write({ failed: String(error.stack || error) }));
