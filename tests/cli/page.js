// What tests ask of a page: functions that are defined there before each question.

// Of every element with text of its own: the contrast of that text against what is behind it, the least first.
function contrasts() {
  const parse = (colour) => colour.match(/[\d.]+/g).map(Number);
  const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    throw new Error("nothing behind");
  };
  const found = [];
  for (const node of document.body.querySelectorAll("*")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own) continue;
    const style = getComputedStyle(node);
    const text = parse(node instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [light(text), light(behind(node))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), node.tagName, node.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}

// Of every text in a plot: how many pixels high its font is on the screen.
function sizes() {
  return [...document.querySelectorAll("svg text, svg tspan")].filter((node) => node.textContent.trim()).map((node) => {
    const plot = node.ownerSVGElement;
    const scale = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
    return parseFloat(getComputedStyle(node).fontSize) * scale;
  });
}

// Texts of plots that leave their picture, and those that run into another.
function outside() {
  return [...document.querySelectorAll("figure > svg, body > svg, :root")].flatMap((svg) => {
    if (!(svg instanceof SVGElement)) return [];
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map((node) => [node, node.getBoundingClientRect()]);
    const out = texts.filter(
      ([, at]) => at.left < box.left - 1 || at.right > box.right + 1 || at.bottom > box.bottom + 1);
    const met = texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) =>
      a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4).map(() => [one, a]));
    return [...out, ...met].map(([node]) => node.textContent);
  });
}

// What can be scrolled sideways without anything that says so.
function hidden() {
  return [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth + 1).length;
}

// Elements and attributes that do something, and where a page can send one.
function active() {
  return [...document.querySelectorAll("*")].flatMap((e) => [
    ...(/^(script|img|iframe|object|embed|link|base|form|input|b)$/i.test(e.tagName) ? [e.outerHTML.slice(0, 80)] : []),
    ...[...e.attributes].filter((a) => /^on/i.test(a.name) || /^(javascript|http):/i.test(a.value.trim())
      && !a.name.startsWith("xmlns")).map((a) => a.name + "=" + a.value),
  ]);
}
