// Makes elements. Whatever comes from the server enters the page as text here, never as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** Makes an element; children are nodes or text, and those that are null or false are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Sets text only where it differs, so that a selection or a screen reader is not disturbed every second. */
export function say(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

/** Puts nodes in place of what is there, unless the key says that nothing has changed. */
export function put(element, key, make) {
  if (element.dataset.key === key) return;
  element.dataset.key = key;
  element.replaceChildren(...[make()].flat());
}

/** A bar of shares, each `[share, class]`, of a width of 1; the numbers stand beside it in text. */
export function bar(...parts) {
  let from = 0;
  const rects = parts.map(([share, name]) => {
    const width = Math.max(0, Math.min(share || 0, 1 - from));
    const rect = svg("rect", { x: `${from * 100}%`, width: `${width * 100}%`, height: "100%", class: name });
    from += width;
    return rect;
  });
  return svg("svg", { class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" }, rects);
}
