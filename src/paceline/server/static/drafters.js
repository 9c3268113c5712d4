// Each drafter's colour and underline, the same everywhere on the page.

const KNOWN = ["suffix", "lookup", "recycle", "prediction", "model", "heads", "grammar"];
const MARKS = 10;
const others = [];

/** The class of a drafter's mark; those that are not built in take what is left, in the order they are met. */
export function mark(name) {
  let place = KNOWN.indexOf(name);
  if (place < 0) {
    if (!others.includes(name)) others.push(name);
    place = KNOWN.length + (others.indexOf(name) % (MARKS - KNOWN.length));
  }
  return `d${place}`;
}
