/* Appended to the laboratory by its test: evaluates formulas, operates the page, reports in JSON. */
const probe = {
  named(path) { return path.split(".").reduce((owner, key) => owner[key], formulas); },
  argument: value => value && value.landscape ? probe.named(value.landscape) : value,
  /** Results of calls [path, arguments...]; numbers that JSON lacks become text. */
  evaluate: calls => calls.map(([path, ...given]) => {
    const place = path.lastIndexOf("."), owner = place < 0 ? formulas : probe.named(path.slice(0, place));
    return owner[path.slice(place + 1)](...given.map(probe.argument));
  }),
  text: value => JSON.stringify(value, (_, item) => typeof item === "number" && !Number.isFinite(item) ? String(item) : item),
  write(value) {
    const element = document.createElement("pre");
    element.id = "results";
    element.textContent = probe.text(value);
    document.body.append(element);
  },
};
